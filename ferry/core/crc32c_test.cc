// Tests of CRC-32C against a bitwise version and the vectors of RFC 3720.
#include "ferry/core/crc32c.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string_view>
#include <vector>

namespace ferry {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// One bit at a time, from the definition: reflected polynomial 0x1EDC6F41.
std::uint32_t SlowCrc32c(std::span<const std::byte> bytes) {
  std::uint32_t state = ~std::uint32_t{0};
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~state;
}

std::vector<std::byte> Pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + (i >> 8));
  return bytes;
}

TEST(Crc32c, MatchesTheStandardVectors) {
  EXPECT_EQ(Crc32c(BytesOf("123456789")), 0xE3069283u);
  // RFC 3720 appendix B.4
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0x00})), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62A8AB43u);
}

TEST(Crc32c, OfNothingIsWhatWasThereBefore) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c({}, 0x12345678u), 0x12345678u);
}

TEST(Crc32c, AgreesWithTheDefinitionAtEverySmallSizeAndAlignment) {
  const std::vector<std::byte> bytes = Pattern(320);
  for (std::size_t start = 0; start < 16; ++start) {
    for (std::size_t size = 0; start + size <= bytes.size(); size += start == 0 ? 1 : 7) {
      const auto part = std::span(bytes).subspan(start, size);
      ASSERT_EQ(Crc32c(part), SlowCrc32c(part)) << start << ' ' << size;
    }
  }
}

TEST(Crc32c, InPiecesEqualsTheWholeAtEveryCut) {
  const std::vector<std::byte> bytes = Pattern(5000);
  const std::uint32_t whole = Crc32c(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 13) {
    const auto all = std::span(bytes);
    ASSERT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), whole) << cut;
  }
}

TEST(Crc32c, SumsMoreThanAnIntCanCount) {
  constexpr std::size_t kSize = (std::size_t{2} << 30) + 17;
  void* zeros =
      ::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  const std::span bytes(static_cast<const std::byte*>(zeros), kSize);
  std::uint32_t pieces = 0;
  for (std::size_t done = 0; done < kSize;) {
    const std::size_t piece = std::min(kSize - done, std::size_t{700} << 20);
    pieces = Crc32c(bytes.subspan(done, piece), pieces);
    done += piece;
  }
  EXPECT_EQ(Crc32c(bytes), pieces);
  ::munmap(zeros, kSize);
}

}  // namespace
}  // namespace ferry
