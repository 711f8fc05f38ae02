// Tests the checksums of frames.
#include <gtest/gtest.h>

#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

TEST(FrameChecksum, OfPiecesIsThatOfTheirBytesInOrder) {
  char text[] = "123456789";
  const iovec whole[] = {{text, 9}};
  const iovec pieces[] = {{text, 4}, {text + 4, 5}};
  EXPECT_EQ(Crc32cOf(whole), 0xE3069283u);
  EXPECT_EQ(Crc32cOf(pieces), 0xE3069283u);
}

TEST(FrameChecksum, SealsThePayloadAndTheMetadata) {
  char text[] = "123456789";
  const iovec payload[] = {{text, 9}};
  std::vector<std::byte> meta = MetaOf(wire::Type::kWrite, 5, wire::SliceBody{1, 0});
  SealPayload(Crc32cOf(payload), &meta);
  SealMetadata(&meta);
  wire::MessageHeader header;
  ASSERT_TRUE(wire::MetaReader(meta).Read(&header));
  EXPECT_EQ(header.flags, wire::kChecked);
  EXPECT_EQ(header.crc, 0xE3069283u);
  EXPECT_EQ(header.meta_crc, MetadataCrc(meta, header));
  meta.back() ^= std::byte{1};
  EXPECT_NE(header.meta_crc, MetadataCrc(meta, header));
}

}  // namespace
}  // namespace ferry::transfer
