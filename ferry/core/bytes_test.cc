// Tests of the bounds-checked reader and writer.
#include "ferry/core/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace ferry {
namespace {

// Not inlined: g++ 12 -O3 sees sizes of less than 8 and warns of a read that ByteReader refuses.
[[gnu::noinline]] std::vector<std::byte> Sequence(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

TEST(LittleEndian, PutsTheLowByteFirst) {
  std::array<std::byte, 4> bytes{};
  StoreLe<std::uint32_t>(bytes, 0x04030201u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(bytes[i], static_cast<std::byte>(i + 1));
  EXPECT_EQ(LoadLe<std::uint32_t>(bytes), 0x04030201u);
  EXPECT_EQ(LoadLe<std::uint16_t>(std::span(bytes).subspan<1, 2>()), 0x0302u);
}

TEST(ByteReader, ReadsBackWhatAByteWriterWrote) {
  std::array<std::byte, 18> buffer{};
  ByteWriter writer(buffer);
  const auto tail = Sequence(3);
  EXPECT_TRUE(writer.U8(0x11) && writer.U16(0x2222) && writer.U32(0x33333333u) &&
              writer.U64(0x4444444444444444u) && writer.Bytes(tail));
  EXPECT_EQ(writer.written().size(), 18u);
  EXPECT_EQ(writer.left(), 0u);

  ByteReader reader(writer.written());
  std::uint8_t a = 0;
  std::uint16_t b = 0;
  std::uint32_t c = 0;
  std::uint64_t d = 0;
  std::vector<std::byte> e(3);
  EXPECT_TRUE(reader.U8(a) && reader.U16(b) && reader.U32(c) && reader.U64(d) && reader.Copy(e));
  EXPECT_EQ(a, 0x11u);
  EXPECT_EQ(b, 0x2222u);
  EXPECT_EQ(c, 0x33333333u);
  EXPECT_EQ(d, 0x4444444444444444u);
  EXPECT_EQ(e, tail);
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_TRUE(reader.ok());
}

// The bytes lie at the end of a heap block, so that a sanitizer sees a read past them.
TEST(ByteReader, FailsAtEverySizeTooSmallForTheField) {
  for (std::size_t size = 0; size < 8; ++size) {
    const auto bytes = Sequence(size);
    std::uint16_t u16 = 9;
    std::uint32_t u32 = 9;
    std::uint64_t u64 = 9;
    EXPECT_EQ(ByteReader(bytes).U16(u16), size >= 2);
    EXPECT_EQ(u16, size >= 2 ? 0x0201u : 0u);
    EXPECT_EQ(ByteReader(bytes).U32(u32), size >= 4);
    EXPECT_EQ(u32, size >= 4 ? 0x04030201u : 0u);
    EXPECT_FALSE(ByteReader(bytes).U64(u64));
    EXPECT_EQ(u64, 0u);
  }
}

TEST(ByteReader, StaysFailedAfterOneShortRead) {
  const auto bytes = Sequence(3);
  ByteReader reader(bytes);
  std::uint32_t wide = 9;
  std::uint8_t narrow = 9;
  EXPECT_FALSE(reader.U32(wide));
  EXPECT_FALSE(reader.U8(narrow));
  EXPECT_EQ(narrow, 0u);
  EXPECT_FALSE(reader.Copy({}));
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.left(), 3u);
}

TEST(ByteReader, ALengthFromThePeerThatIsTooLongIsRefused) {
  const auto bytes = Sequence(4);
  for (const std::size_t count : {std::size_t{5}, std::numeric_limits<std::size_t>::max()}) {
    ByteReader reader(bytes);
    std::span<const std::byte> view(bytes);
    EXPECT_FALSE(reader.View(count, view));
    EXPECT_TRUE(view.empty());
  }
}

TEST(ByteReader, ViewsAndCopiesAdvanceByTheirSize) {
  const auto bytes = Sequence(6);
  ByteReader reader(bytes);
  std::span<const std::byte> view;
  EXPECT_TRUE(reader.View(3, view));
  EXPECT_EQ(view.data(), bytes.data());
  std::array<std::byte, 2> copy{};
  EXPECT_TRUE(reader.Copy(copy));
  EXPECT_EQ(copy[0], std::byte{4});
  EXPECT_TRUE(reader.Copy({}));
  EXPECT_EQ(reader.left(), 1u);
  EXPECT_FALSE(reader.Copy(copy));
  EXPECT_EQ(copy[0], std::byte{0});
}

TEST(ByteWriter, WritesNothingOfAFieldThatDoesNotFit) {
  std::array<std::byte, 5> buffer{};
  ByteWriter writer(buffer);
  EXPECT_TRUE(writer.U16(0xffff));
  EXPECT_FALSE(writer.U32(0xffffffffu));
  EXPECT_FALSE(writer.U8(0xff));
  EXPECT_FALSE(writer.Bytes({}));
  EXPECT_FALSE(writer.ok());
  EXPECT_EQ(writer.written().size(), 2u);
  EXPECT_EQ(buffer[2], std::byte{0});
}

TEST(ByteWriter, FillsABufferToItsLastByte) {
  std::vector<std::byte> buffer(9);
  ByteWriter writer(buffer);
  EXPECT_TRUE(writer.U64(1) && writer.U8(2));
  EXPECT_FALSE(writer.U8(3));
  EXPECT_EQ(buffer[8], std::byte{2});
}

}  // namespace
}  // namespace ferry
