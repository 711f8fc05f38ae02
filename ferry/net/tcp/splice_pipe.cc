// Zero-copy sends with vmsplice(2) and splice(2).
#include "ferry/net/tcp/splice_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "ferry/core/no_write_signals.h"

namespace ferry::net::tcp {
namespace {
constexpr int kWantedBytes = 1 << 20;
constexpr int kMinBytes = 256 << 10;

}  // namespace

std::optional<SplicePipe> SplicePipe::Create() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return std::nullopt;
  // A child process with these descriptors would keep the pages in the pipe.
  UniqueFd read_end = ClosedInChildren(UniqueFd(ends[0]));
  UniqueFd write_end = ClosedInChildren(UniqueFd(ends[1]));
  (void)::fcntl(write_end.get(), F_SETPIPE_SZ, kWantedBytes);
  const int capacity = ::fcntl(write_end.get(), F_GETPIPE_SZ);
  // The user's limit may leave only a small pipe, through which copying would be faster.
  if (capacity < kMinBytes) return std::nullopt;
  return SplicePipe(std::move(read_end), std::move(write_end), static_cast<std::size_t>(capacity));
}

// Refers to the caller's pages, without copying (docs/gotchas.md says until when).
ssize_t SplicePipe::Fill(std::span<const iovec> pieces) {
  const ssize_t taken =
      ::vmsplice(write_end_.get(), pieces.data(), pieces.size(), SPLICE_F_NONBLOCK);
  if (taken > 0) held_ += static_cast<std::size_t>(taken);
  return taken;
}

ssize_t SplicePipe::Drain(int socket) {
  NoWriteSignals no_signal;
  const auto asked = static_cast<ssize_t>(held_);
  const ssize_t passed =
      ::splice(read_end_.get(), nullptr, socket, nullptr, held_, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (passed > 0) held_ -= static_cast<std::size_t>(passed);
  // If the peer closes during the call, splice returns the bytes that went before and still raises
  // the signal.
  if (passed < asked) no_signal.MayBeRaised();
  return passed;
}

}  // namespace ferry::net::tcp
