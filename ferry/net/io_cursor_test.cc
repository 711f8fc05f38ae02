// Tests of positions in lists of I/O vectors.
#include "ferry/net/io_cursor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ferry/net/testing/lane_end.h"

namespace ferry::net {
namespace {

std::string Text(std::span<const iovec> pieces) {
  std::string text;
  for (const iovec& piece : pieces) {
    text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  return text;
}

// "abcdefgh", cut at each set bit of `cuts`.
struct CutText {
  explicit CutText(unsigned cuts) {
    std::size_t begin = 0;
    for (std::size_t i = 1; i <= text.size(); ++i) {
      const bool cut = i == text.size() || (cuts >> (i - 1) & 1) != 0;
      if (!cut) continue;
      pieces.push_back({text.data() + begin, i - begin});
      begin = i;
    }
  }
  std::string text = "abcdefgh";
  std::vector<iovec> pieces;
};
constexpr unsigned kAllCuts = 128;

TEST(IoCursor, CollectsWhatLiesAheadUpToTheLimit) {
  const auto check = [](const CutText& cut, std::size_t skip, std::size_t most) {
    IoCursor cursor(cut.pieces);
    cursor.Advance(skip);
    std::array<iovec, 8> out{};
    std::size_t used = 0;
    const std::size_t bytes = cursor.Collect(out, &used, most);
    const std::string expected = cut.text.substr(skip, most);
    EXPECT_EQ(bytes, expected.size());
    EXPECT_EQ(Text(std::span(out).first(used)), expected);
    EXPECT_EQ(cursor.at_end(), skip == cut.text.size());
  };
  for (unsigned cuts = 0; cuts < kAllCuts; ++cuts) {
    const CutText cut(cuts);
    for (std::size_t skip = 0; skip <= cut.text.size(); ++skip) {
      for (std::size_t most = 0; most <= cut.text.size() + 1; ++most) check(cut, skip, most);
    }
  }
}

TEST(IoCursor, CollectsNoMorePiecesThanFit) {
  for (unsigned cuts = 0; cuts < kAllCuts; ++cuts) {
    CutText cut(cuts);
    const IoCursor cursor(cut.pieces);
    for (std::size_t room = 0; room <= 8; ++room) {
      std::array<iovec, 10> out{};
      out[0] = {cut.text.data(), 1};
      std::size_t used = 1;
      const std::size_t bytes = cursor.Collect(std::span(out).first(1 + room), &used, 100);
      const std::size_t fitting = std::min(room, cut.pieces.size());
      EXPECT_EQ(used, 1 + fitting);
      EXPECT_EQ(Text(std::span(out).subspan(1, fitting)), cut.text.substr(0, bytes));
    }
  }
}

TEST(IoCursor, CopiesInAsMuchAsThereIsRoomFor) {
  const std::string source = "ABCDEFGHIJ";
  for (unsigned cuts = 0; cuts < kAllCuts; ++cuts) {
    for (std::size_t first = 0; first <= source.size(); ++first) {
      const CutText cut(cuts);
      IoCursor cursor(cut.pieces);
      std::size_t taken = cursor.CopyIn(AsBytes(source).first(first));
      EXPECT_EQ(taken, std::min(first, cut.text.size()));
      EXPECT_EQ(cut.text, source.substr(0, taken) + std::string("abcdefgh").substr(taken));
      taken += cursor.CopyIn(AsBytes(source).subspan(taken));
      EXPECT_EQ(taken, cut.text.size());
      EXPECT_TRUE(cursor.at_end());
      EXPECT_EQ(cut.text, "ABCDEFGH");
    }
  }
}

TEST(IoCursor, CopiesOutAsMuchAsThereIs) {
  for (unsigned cuts = 0; cuts < kAllCuts; ++cuts) {
    for (std::size_t first = 0; first <= 10; ++first) {
      const CutText cut(cuts);
      IoCursor cursor(cut.pieces);
      std::string out(10, '-');
      const auto room = std::as_writable_bytes(std::span(out.data(), out.size()));
      std::size_t taken = cursor.CopyOut(room.first(first));
      EXPECT_EQ(taken, std::min(first, cut.text.size()));
      taken += cursor.CopyOut(room.subspan(taken));
      EXPECT_EQ(taken, cut.text.size());
      EXPECT_TRUE(cursor.at_end());
      EXPECT_EQ(out, cut.text + "--");
    }
  }
}

TEST(IoCursor, OfNothingIsAtItsEnd) {
  const IoCursor cursor;
  std::array<iovec, 1> out{};
  std::size_t used = 0;
  EXPECT_TRUE(cursor.at_end());
  EXPECT_EQ(cursor.Collect(out, &used, 100), 0U);
  EXPECT_EQ(used, 0U);
}

}  // namespace
}  // namespace ferry::net
