// Tests encoding and decoding of frames.
#include "ferry/transfer/handshake/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace ferry::transfer::wire {
namespace {

std::vector<std::byte> Bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

TEST(Wire, EveryFieldIsWhereTheDocumentSays) {
  EXPECT_EQ(offsetof(MessageHeader, type), 0u);
  EXPECT_EQ(offsetof(MessageHeader, ack), 4u);
  EXPECT_EQ(offsetof(MessageHeader, operation), 8u);
  EXPECT_EQ(offsetof(MessageHeader, crc), 16u);
  EXPECT_EQ(offsetof(MessageHeader, meta_crc), 20u);
  EXPECT_EQ(offsetof(HelloBody, version), 0u);
  EXPECT_EQ(offsetof(HelloBody, lanes), 2u);
  EXPECT_EQ(offsetof(HelloBody, endpoint), 8u);
  EXPECT_EQ(offsetof(HelloBody, expected), 24u);
  EXPECT_EQ(offsetof(HelloBody, window_bytes), 40u);
  EXPECT_EQ(offsetof(HelloBody, process), 48u);
  EXPECT_EQ(offsetof(WelcomeBody, version), 0u);
  EXPECT_EQ(offsetof(WelcomeBody, connection), 4u);
  EXPECT_EQ(offsetof(WelcomeBody, endpoint), 8u);
  EXPECT_EQ(offsetof(WelcomeBody, token), 24u);
  EXPECT_EQ(offsetof(WelcomeBody, window_bytes), 40u);
  EXPECT_EQ(offsetof(WelcomeBody, flags), 48u);
  EXPECT_EQ(offsetof(WelcomeBody, address_bytes), 52u);
  EXPECT_EQ(offsetof(WelcomeBody, process), 56u);
  EXPECT_EQ(offsetof(RejoinBody, attempt), 8u);
  EXPECT_EQ(offsetof(RejoinBody, token), 16u);
  EXPECT_EQ(offsetof(ResumeBody, refusals), 4u);
  EXPECT_EQ(offsetof(RefusalOnWire, code), 4u);
  EXPECT_EQ(offsetof(JoinBody, version), 0u);
  EXPECT_EQ(offsetof(JoinBody, lane), 2u);
  EXPECT_EQ(offsetof(JoinBody, connection), 4u);
  EXPECT_EQ(offsetof(JoinBody, token), 8u);
  EXPECT_EQ(offsetof(RefuseBody, slice), 4u);
  EXPECT_EQ(offsetof(RefuseBody, code), 8u);
  EXPECT_EQ(offsetof(KeyBody, generation), 4u);
  EXPECT_EQ(offsetof(KeyBody, token), 8u);
  EXPECT_EQ(offsetof(WriteBody, slice), 16u);
  EXPECT_EQ(offsetof(WriteBody, blocks), 20u);
  EXPECT_EQ(offsetof(BlockOnWire, length), 8u);
  EXPECT_EQ(offsetof(TagBody, bytes), 8u);
}

TEST(Wire, TheLongestBlockListFitsTheMetadataOfAFrame) {
  EXPECT_LE(sizeof(MessageHeader) + sizeof(WriteBody) + kMaxBlocksPerFrame * sizeof(BlockOnWire),
            64u * 1024);
}

TEST(MetaReader, ReadsWhatWasAppendedAndNothingMore) {
  std::vector<std::byte> meta;
  Append(&meta, KeyBody{1, 2, 3});
  Append(&meta, SliceBody{4, 0});
  MetaReader reader(meta);
  KeyBody key;
  SliceBody slice;
  ASSERT_TRUE(reader.Read(&key));
  ASSERT_TRUE(reader.Read(&slice));
  EXPECT_EQ(key.region, 1u);
  EXPECT_EQ(key.generation, 2u);
  EXPECT_EQ(key.token, 3u);
  EXPECT_EQ(slice.slice, 4u);
  EXPECT_TRUE(reader.rest().empty());
  EXPECT_FALSE(reader.Read(&slice));
}

// The bytes are in an allocation of exactly their size, so that a sanitizer detects a read past it.
TEST(MetaReader, NeverReadsPastTheEndWhateverTheLength) {
  for (std::size_t length = 0; length <= 40; ++length) {
    const std::vector<std::byte> exact = Bytes(length);
    MetaReader reader(exact);
    KeyBody key;
    std::size_t got = 0;
    while (reader.Read(&key)) ++got;
    EXPECT_EQ(got, length / sizeof(KeyBody));
    EXPECT_EQ(reader.rest().size(), length % sizeof(KeyBody));
    EXPECT_EQ(reader.Text().size(), length % sizeof(KeyBody));
  }
}

TEST(MetaReader, AFailedReadLeavesValueAndPosition) {
  const std::vector<std::byte> bytes = Bytes(10);
  MetaReader reader(bytes);
  KeyBody key{7, 8, 9};
  EXPECT_FALSE(reader.Read(&key));
  EXPECT_EQ(key.region, 7u);
  EXPECT_EQ(key.token, 9u);
  EXPECT_EQ(reader.rest().size(), 10u);
}

TEST(MetaReader, TextIsMadePrintable) {
  std::vector<std::byte> bytes;
  for (unsigned c = 0; c < 256; ++c) bytes.push_back(static_cast<std::byte>(c));
  const std::string text = MetaReader(bytes).Text();
  ASSERT_EQ(text.size(), 256u);
  for (unsigned c = 0; c < 256; ++c) {
    const bool printable = c >= 0x20 && c < 0x7F;
    EXPECT_EQ(text[c], printable ? static_cast<char>(c) : '?') << c;
  }
}

TEST(MetaReader, NoTextIsNoBytes) {
  std::vector<std::byte> meta;
  AppendText(&meta, {});
  EXPECT_TRUE(meta.empty());
  EXPECT_EQ(MetaReader({}).Text(), "");
}

TEST(MetaReader, TextIsCutOnBothSides) {
  const std::string text(3 * kMaxTextBytes, 'x');
  std::vector<std::byte> meta;
  AppendText(&meta, text);
  EXPECT_EQ(meta.size(), kMaxTextBytes);
  meta.resize(2 * kMaxTextBytes, std::byte{'y'});
  EXPECT_EQ(MetaReader(meta).Text(), std::string(kMaxTextBytes, 'x'));
}

TEST(Wire, AnUnknownCodeBecomesInternal) {
  for (unsigned code = 0; code < 256; ++code) {
    const Code got = CodeFromWire(static_cast<std::uint8_t>(code));
    const bool known = code >= 1 && code <= static_cast<unsigned>(Code::kInternal);
    EXPECT_EQ(got, known ? static_cast<Code>(code) : Code::kInternal) << code;
  }
}

TEST(Wire, EveryTypeHasANameOfItsOwn) {
  std::vector<std::string> names;
  for (unsigned type = 0; type < 256; ++type) {
    const std::string name = TypeName(static_cast<Type>(type));
    if (name == "unknown") continue;
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 0) << name;
    names.push_back(name);
  }
  EXPECT_GE(names.size(), 18u);
}

}  // namespace
}  // namespace ferry::transfer::wire
