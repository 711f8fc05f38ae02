// Tests of copies between host memory.
#include "ferry/copy/executor_host.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

namespace ferry {
namespace {

std::vector<std::byte> Pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

TEST(HostExecutor, IsCalledHost) { EXPECT_EQ(HostExecutor().name(), "host"); }

TEST(HostExecutor, MovesEachBlockAndTouchesNothingElse) {
  const auto src = Pattern(16);
  std::vector<std::byte> dst(12, std::byte{0xee});
  HostExecutor executor;
  ASSERT_TRUE(executor.Execute(BlockList({{8, 0, 4}, {0, 14, 2}, {3, 2, 3}}), dst, src));
  const unsigned expected[] = {15, 16, 0xee, 3, 4, 5, 0xee, 0xee, 1, 2, 3, 4};
  for (std::size_t i = 0; i < dst.size(); ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(dst[i]), expected[i]) << i;
  }
}

TEST(HostExecutor, CopiesNothingOfAListThatIsRefused) {
  const auto src = Pattern(8);
  std::vector<std::byte> dst(8, std::byte{0xee});
  HostExecutor executor;
  const Status status = executor.Execute(BlockList({{0, 0, 4}, {4, 4, 5}}), dst, src);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(),
            "block 1 writes bytes 4..9 of a destination of 8 bytes; keep every block inside it");
  EXPECT_EQ(dst, std::vector<std::byte>(8, std::byte{0xee}));
}

TEST(HostExecutor, GivesTheSameBytesBeforeAndAfterMerging) {
  const auto src = Pattern(64);
  const BlockList list({{0, 10, 5}, {5, 15, 6}, {20, 0, 3}, {23, 3, 1}, {40, 40, 24}});
  std::vector<std::byte> apart(64);
  std::vector<std::byte> merged(64);
  HostExecutor executor;
  ASSERT_TRUE(executor.Execute(list, apart, src));
  ASSERT_TRUE(executor.Execute(list.Merged(), merged, src));
  EXPECT_EQ(apart, merged);
}

// Address space without memory, of which only the touched pages exist.
class Sparse {
 public:
  explicit Sparse(std::size_t size)
      : size_(size),
        start_(::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  ~Sparse() {
    if (mapped()) ::munmap(start_, size_);
  }
  bool mapped() const { return start_ != MAP_FAILED; }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(start_), size_}; }

 private:
  std::size_t size_;
  void* start_;
};

TEST(HostExecutor, ReachesBlocksBeyond4GiB) {
  constexpr std::size_t kSize = (std::size_t{9} << 30) + 4096;
  const Sparse dst(kSize);
  const Sparse src(kSize);
  ASSERT_TRUE(dst.mapped() && src.mapped());
  constexpr std::size_t kSource = (std::size_t{5} << 30) + 1;
  constexpr std::size_t kTarget = kSize - 3;
  for (std::size_t i = 0; i < 3; ++i) src.bytes()[kSource + i] = static_cast<std::byte>(i + 1);
  ASSERT_TRUE(HostExecutor().Execute(BlockList({{kTarget, kSource, 3}}), dst.bytes(), src.bytes()));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(dst.bytes()[kTarget + i], static_cast<std::byte>(i + 1));
  }
}

}  // namespace
}  // namespace ferry
