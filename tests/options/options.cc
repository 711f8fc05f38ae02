// Never linked. Compiled once as it is, which must succeed, and once for each -DCASE=<number>,
// which must fail: an option that does not apply to a verb does not compile.
#include "ferry/transfer/connection.h"

#ifndef CASE
#define CASE 0
#endif

using ferry::transfer::Connection;
using ferry::transfer::PreparedTransfer;

void Post(Connection& connection, const PreparedTransfer& transfer, std::span<std::byte> bytes,
          ferry::cuda::StreamRef stream) {
  const auto soon = ferry::Deadline::Never();
  (void)connection.Write(
      transfer, {.deadline = soon, .notification = bytes, .checksum = true, .after = stream});
  (void)connection.Read(transfer, {.deadline = soon, .checksum = true, .after = stream});
  (void)connection.Send(1, bytes, {.deadline = soon, .rendezvous = true, .after = stream});
  (void)connection.Recv(1, 1, bytes, {.deadline = soon, .after = stream});
  (void)connection.Notify(bytes, {.deadline = soon, .after = stream});
#if CASE == 1
  (void)connection.Send(1, bytes, {.notification = bytes});
#elif CASE == 2
  (void)connection.Send(1, bytes, ferry::transfer::WriteOptions{.notification = bytes});
#elif CASE == 3
  (void)connection.Read(transfer, {.notification = bytes});
#elif CASE == 4
  (void)connection.Recv(1, 1, bytes, {.notification = bytes});
#elif CASE == 5
  (void)connection.Send(1, bytes, {.checksum = true});
#elif CASE == 6
  (void)connection.Recv(1, 1, bytes, {.checksum = true});
#elif CASE == 7
  (void)connection.Notify(bytes, {.checksum = true});
#endif
}
