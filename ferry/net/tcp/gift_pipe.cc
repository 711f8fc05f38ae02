#include "ferry/net/tcp/gift_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

namespace ferry::net::tcp {
namespace {
constexpr int kWantedBytes = 1 << 20;
constexpr int kLeastBytes = 256 << 10;
}  // namespace

std::optional<GiftPipe> GiftPipe::Create() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return std::nullopt;
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  (void)::fcntl(write_end.get(), F_SETPIPE_SZ, kWantedBytes);
  const int capacity = ::fcntl(write_end.get(), F_GETPIPE_SZ);
  if (capacity < kLeastBytes) return std::nullopt;
  return GiftPipe(std::move(read_end), std::move(write_end), static_cast<std::size_t>(capacity));
}

ssize_t GiftPipe::Fill(std::span<const iovec> pieces) {
  const ssize_t taken =
      ::vmsplice(write_end_.get(), pieces.data(), pieces.size(), SPLICE_F_NONBLOCK);
  if (taken > 0) held_ += static_cast<std::size_t>(taken);
  return taken;
}

ssize_t GiftPipe::Drain(int socket) {
  const ssize_t passed =
      ::splice(read_end_.get(), nullptr, socket, nullptr, held_, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (passed > 0) held_ -= static_cast<std::size_t>(passed);
  return passed;
}

}  // namespace ferry::net::tcp
