// Accepts the peers of a server of the tools, and tells those that it cannot serve why.
#pragma once
#include <functional>
#include <list>
#include <string>

#include "ferry/core/log_limiter.h"
#include "ferry/core/result.h"
#include "ferry/transfer/endpoint.h"
#include "tools/support/operations.h"

namespace ferry::tools {

// For one thread.
class Acceptor {
 public:
  // The endpoint must outlive this object.
  explicit Acceptor(transfer::Endpoint* endpoint) : endpoint_(endpoint) {}
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor();

  // Blocks for the next peer. `stop`, if any, is asked several times a second. Errors: kCancelled
  // when interrupted, or where `stop` returned true.
  Result<transfer::Connection> Next(const std::function<bool()>& stop = nullptr);
  // Tells a peer why it is not served, and closes its connection when it has left or after two
  // seconds. Never waits for the peer.
  void Refuse(transfer::Connection connection, const Error& reason);

 private:
  struct Refused {
    transfer::Connection connection;
    std::string text;  // in flight
    Deadline until;
  };
  void CloseRefused();

  transfer::Endpoint* const endpoint_;
  LogLimiter log_;
  std::list<Refused> refused_;
};

}  // namespace ferry::tools
