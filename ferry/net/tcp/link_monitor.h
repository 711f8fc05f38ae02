// Reports network links that go up or down.
#pragma once
#include <memory>

#include "ferry/core/fd.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::net::tcp {

// Reports link changes of this network namespace through rtnetlink(7). A link that loses its
// carrier is reported within milliseconds; its sockets would not notice before TCP_USER_TIMEOUT
// (without it, many minutes).
class LinkMonitor final : public LinkWatch, private EventLoop::Handler {
 public:
  // As Provider::WatchLinks. Errors: those of the system calls.
  static Result<std::unique_ptr<LinkWatch>> Create(EventLoop* loop, Provider::LinkChanged changed);
  ~LinkMonitor() override;

 private:
  LinkMonitor(UniqueFd fd, EventLoop* loop, Provider::LinkChanged changed)
      : fd_(std::move(fd)), loop_(loop), changed_(std::move(changed)) {}
  void OnEvents(std::uint32_t events) override;

  UniqueFd fd_;
  EventLoop* const loop_;
  Provider::LinkChanged changed_;
};

// Passes each change that an rtnetlink datagram reports to `changed`; ignores messages that it does
// not understand.
void ParseLinkChanges(std::span<const std::byte> datagram, Provider::LinkChanged& changed);

}  // namespace ferry::net::tcp
