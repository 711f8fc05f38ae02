// Tests transfers whose byte counts exceed 32 bits and whose block counts exceed 20 bits; they are
// smaller under a sanitizer.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Operation;
using transfer::TransferPart;

constexpr std::uint64_t kHuge = (kSanitized ? 150 * kMiB : 5 * kGiB) + 12345;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kStretchPages = kStretchBytes / kPage;
constexpr std::uint64_t kStretches = kSanitized ? 3 : 80;
constexpr std::uint64_t kPages = kStretches * kStretchPages;
static_assert(kSanitized || (kPages > 1 << 20 && kPages * kPage > std::uint64_t{1} << 32));

class Huge : public testing::Test {
 protected:
  PatternRegion Source(std::uint64_t bytes) {
    GuardedMemory memory = GuardedMemory::Repeated(bytes, /*windows=*/false);
    Fill(memory.bytes().first(kStretchBytes), 1);
    return {link_.endpoint, std::move(memory)};
  }
  static void ExpectOk(Operation operation) {
    const Stopwatch since;
    const Status status = operation.Wait(TestDeadline());
    EXPECT_TRUE(status) << status.error().ToString();
    fmt::print("{} bytes in {} ms\n", operation.bytes(), since.elapsed().count());
  }

  LinkedPeer link_{FastSettings({"peer_timeout=10s"})};
};

TEST_F(Huge, RegionIsWrittenWhole) {
  const PatternRegion source = Source(kHuge);
  const auto in = Must(link_.connection.Import(link_.peer.RepeatedRegion("in", kHuge)));
  ASSERT_NE(link_.peer.Digest("in"), source.Digest());
  ExpectOk(Must(link_.connection.Write(source.region, 0, in, 0, kHuge)));
  EXPECT_EQ(link_.peer.Digest("in"), source.Digest());
  EXPECT_EQ(link_.peer.Quit(), 0);
}

TEST_F(Huge, RegionIsReadWhole) {
  const PatternRegion source = Source(kHuge);
  link_.peer.RepeatedRegion("to", kHuge);
  link_.peer.PostRead("to", source.region);
  EXPECT_EQ(link_.peer.Outcome(), "done");
  EXPECT_EQ(link_.peer.Digest("to"), source.Digest());
  EXPECT_EQ(link_.peer.Quit(), 0);
}

TEST_F(Huge, ListOfPagesIsScatteredOnBothSides) {
  constexpr std::uint64_t kStep = 10007;  // a prime that visits every page
  // Any page may go to one that is whole stretches away: there the same bytes are expected.
  constexpr std::uint64_t kAway = (kStretches / 2) * kStretchPages;
  const PatternRegion source = Source(kPages * kPage);
  const auto in = Must(link_.connection.Import(link_.peer.RepeatedRegion("in", kPages * kPage)));
  std::vector<TransferPart> parts(1);
  parts[0].local = &source.region;
  parts[0].remote = &in;
  parts[0].blocks.Reserve(kPages);
  std::uint64_t page = 0;
  for (std::uint64_t i = 0; i < kPages; ++i) {
    const std::uint64_t to = (page + kAway) % kPages;
    parts[0].blocks.Add({.dst = to * kPage, .src = page * kPage, .len = kPage});
    page = (page + kStep) % kPages;
  }
  const auto prepared = Must(link_.connection.PrepareWrite(std::move(parts)));
  EXPECT_EQ(prepared.bytes(), kPages * kPage);
  ExpectOk(Must(link_.connection.Write(prepared)));
  EXPECT_EQ(link_.peer.Digest("in"), source.Digest());
  EXPECT_EQ(link_.peer.Quit(), 0);
}

}  // namespace
}  // namespace ferry::tests
