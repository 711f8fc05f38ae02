// A relay that terminates TLS between clients and a server, as an attacker would.
#pragma once
#include <openssl/ssl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "ferry/core/config.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"
#include "ferry/net/tcp/tls/context.h"

namespace ferry::tests {

// A man in the middle between TLS clients and one listening port, with a certificate that both
// sides accept: it terminates TLS on both sides, so that it sees all bytes in the clear, and
// forwards them. It has a thread per connection. Any thread may call any method.
class TlsRelay {
 public:
  // Listens on a free port of 127.0.0.1. `own`: with tls=cert and the files of the relay. Errors:
  // kInvalidArgument for a target that is not numeric or for the files, kUnavailable.
  static Result<std::unique_ptr<TlsRelay>> Start(const net::Address& target, const Config& own);
  // Closes all open connections.
  ~TlsRelay();
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;

  // Where clients connect in place of the target.
  const net::Address& address() const noexcept { return address_; }
  // Connections before this one, counted from 0 as they come, pass as they are, TLS and all; at
  // first none does.
  void EndTlsFrom(std::size_t connection) { end_tls_from_.store(connection); }
  // Resets one connection, or all open ones.
  void Cut(std::size_t connection);
  void CutNow();

  std::size_t connections() const { return connections_.load(); }  // accepted so far
  std::uint64_t bytes_seen() const { return bytes_seen_.load(); }  // in the clear

 private:
  // One side of a connection; without TLS where `ssl` is null.
  struct End {
    UniqueFd fd;
    std::unique_ptr<SSL, decltype(&::SSL_free)> ssl{nullptr, ::SSL_free};
  };
  struct Connection {
    End client;
    End target;
    std::atomic<bool> is_cut{false};
    std::thread thread;
  };

  TlsRelay(UniqueFd listening, net::Address address, const net::RawAddress& target,
           std::shared_ptr<const net::tcp::TlsContext> context);
  void Main();
  static void CutOne(Connection* connection);
  void Serve(Connection* connection, bool ends_tls);
  bool EndTls(Connection* connection) const;
  void Relay(Connection* connection);
  bool PassOn(End* from, End* to);
  static bool WriteAll(End* to, const char* bytes, std::size_t size);

  const UniqueFd listening_;
  const net::Address address_;
  const net::RawAddress target_;
  const std::shared_ptr<const net::tcp::TlsContext> context_;  // with the connections
  std::atomic<std::size_t> end_tls_from_{0};
  std::atomic<std::size_t> connections_{0};
  std::atomic<std::uint64_t> bytes_seen_{0};
  std::mutex mutex_;  // guards the list, whose elements stay to the end
  std::list<Connection> served_;
  bool stopping_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace ferry::tests
