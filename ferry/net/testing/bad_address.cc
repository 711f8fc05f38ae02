// Implements BadAddress.
#include "ferry/net/testing/bad_address.h"

#include <sys/socket.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::net {
namespace {

constexpr std::string_view kHttpAnswer =
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

}  // namespace

const char* BadName(Bad bad) {
  switch (bad) {
    case Bad::kRefuses: return "Refuses";
    case Bad::kDrops: return "Drops";
    case Bad::kMute: return "IsMute";
    case Bad::kCloses: return "Closes";
    case Bad::kHttp: return "SpeaksHttp";
  }
  return "Unknown";
}

BadAddress::BadAddress(Bad bad, const Address& at) {
  RawAddress raw = *ToRaw(at);
  auto* const name = reinterpret_cast<sockaddr*>(&raw.storage);
  socket_ = UniqueFd(::socket(raw.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  FERRY_CHECK(::bind(socket_.get(), name, raw.length) == 0, at.ToString(), errno);
  FERRY_CHECK(::getsockname(socket_.get(), name, &raw.length) == 0, errno);
  address_ = FromRaw(raw);
  if (bad == Bad::kRefuses) return;
  FERRY_CHECK(::listen(socket_.get(), bad == Bad::kDrops ? 0 : 128) == 0, errno);
  for (int i = 0; bad == Bad::kDrops && i < 4; ++i) {
    connections_.emplace_back(
        ::socket(raw.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(connections_.back().get(), raw.get(), raw.length);
  }
  if (bad == Bad::kCloses || bad == Bad::kHttp) thread_ = std::thread([this, bad] { Accept(bad); });
}

BadAddress::~BadAddress() {
  if (!thread_.joinable()) return;
  // Ends accept().
  (void)::shutdown(socket_.get(), SHUT_RDWR);
  thread_.join();
}

void BadAddress::Accept(Bad bad) {
  for (;;) {
    UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    if (bad == Bad::kCloses) continue;
    (void)::send(fd.get(), kHttpAnswer.data(), kHttpAnswer.size(), MSG_NOSIGNAL);
    // Kept open: closing with unread bytes would be a reset, which may overtake the answer.
    (void)::shutdown(fd.get(), SHUT_WR);
    connections_.push_back(std::move(fd));
  }
}

}  // namespace ferry::net
