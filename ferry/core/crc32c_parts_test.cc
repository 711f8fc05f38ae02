// Tests of CRC-32C from parts in any order.
#include "ferry/core/crc32c_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ferry/core/crc32c.h"
#include "ferry/core/testing/random_bytes.h"

namespace ferry {
namespace {

TEST(Crc32cParts, MovingForwardIsAppendingZeros) {
  for (const std::size_t zeros : {0U, 1U, 16U, 4096U, 100'003U}) {
    const std::vector<std::byte> appended(zeros);
    // Crc32c() inverts the state before and after.
    EXPECT_EQ(CrcMultiply(0x12345678U, CrcPower(zeros, kCrcForward)),
              ~Crc32c(appended, ~0x12345678U))
        << zeros;
  }
}

TEST(Crc32cParts, MovingBackUndoesIt) {
  for (const std::uint64_t bytes : {1ULL, 4095ULL, 1ULL << 20, (1ULL << 40) + 12'345}) {
    EXPECT_EQ(CrcMultiply(CrcPower(bytes, kCrcForward), CrcPower(bytes, kCrcBack)), kCrcOne)
        << bytes;
  }
}

TEST(Crc32cParts, PartsInAnyOrderAreTheWhole) {
  std::mt19937 random(3);
  for (const std::size_t size : {0U, 1U, 15U, 4096U, 70'001U}) {
    const auto bytes = RandomBytes(size, size);
    std::vector<std::size_t> cuts{0, size};
    for (int i = 0; i < 20; ++i) cuts.push_back(size == 0 ? 0 : random() % size);
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t i = 1; i < cuts.size(); ++i) parts.emplace_back(cuts[i - 1], cuts[i]);
    std::shuffle(parts.begin(), parts.end(), random);
    std::uint32_t sum = 0;
    for (const auto& [from, to] : parts) {
      sum ^= Crc32cPart(std::span(bytes).subspan(from, to - from), from);
    }
    EXPECT_EQ(Crc32cOfParts(sum, size), Crc32c(bytes)) << size;
  }
}

}  // namespace
}  // namespace ferry
