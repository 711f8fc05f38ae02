#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/crc32c.h"
#include "ferry/core/units.h"
#include "tests/engine_peer.h"

// Transfers whose bytes and blocks do not fit 32 and 20 bits. Under a sanitizer they are smaller.
namespace ferry::tests {
namespace {

using transfer::Operation;
using transfer::PostOptions;
using transfer::TransferPart;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHuge = (kSanitized ? 150 * kMiB : 5 * kGiB) + 12345;
// Primes, so that any step visits every page.
constexpr std::uint64_t kPages = kSanitized ? 20011 : 1'300'021;
constexpr std::uint64_t kSourceStep = 7919;
constexpr std::uint64_t kTargetStep = 10007;
static_assert(kSanitized || kHuge > std::uint64_t{1} << 32);
static_assert(kSanitized || (kPages > 1 << 20 && kPages * kPage > std::uint64_t{1} << 32));

// Address space of which one stretch of memory fills all: cheap to have, yet what is taken from a
// wrong place differs, unless it is off by a multiple of a prime number of pages.
class RepeatedMemory {
 public:
  explicit RepeatedMemory(std::size_t bytes) {
    const UniqueFd file(::memfd_create("repeated", MFD_CLOEXEC));
    FERRY_CHECK(::ftruncate(file.get(), static_cast<off_t>(kStretch)) == 0, errno);
    const std::size_t stretches = (bytes + kStretch - 1) / kStretch;
    void* const whole = ::mmap(nullptr, stretches * kStretch, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FERRY_CHECK(whole != MAP_FAILED, errno);
    mapping_ = {static_cast<std::byte*>(whole), stretches * kStretch};
    for (std::size_t i = 0; i < stretches; ++i) {
      void* const at = mapping_.data() + i * kStretch;
      FERRY_CHECK(::mmap(at, kStretch, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(),
                         0) == at,
                  errno);
    }
    bytes_ = mapping_.first(bytes);
    Fill(mapping_.first(kStretch), 1);
  }
  ~RepeatedMemory() { (void)::munmap(mapping_.data(), mapping_.size()); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kStretch = 16411 * kPage;  // 64 MiB

  std::span<std::byte> mapping_;
  std::span<std::byte> bytes_;
};

class Huge : public testing::Test {
 protected:
  void ExpectOk(Operation operation) {
    const Stopwatch since;
    const Status status = operation.Wait(Deadline::After(2 * kPatience));
    EXPECT_TRUE(status) << status.error().ToString();
    fmt::print("{} bytes in {} ms\n", operation.bytes(), since.elapsed().count());
  }

  LinkedPeer link_{FastSettings({"peer_timeout=10s"})};
};

TEST_F(Huge, RegionIsWrittenWhole) {
  const RepeatedMemory source(kHuge);
  const auto region = Must(link_.endpoint.Register(source.bytes(), transfer::Rights::kNone));
  const auto in = Must(link_.connection.Import(link_.peer.Region("in", kHuge, 2)));
  ExpectOk(Must(link_.connection.Write(region, 0, in, 0, kHuge)));
  EXPECT_EQ(link_.peer.Digest("in"), Crc32c(source.bytes()));
  EXPECT_EQ(link_.peer.Quit(), 0);
}

TEST_F(Huge, RegionIsReadWhole) {
  const RepeatedMemory source(kHuge);
  const auto region = Must(link_.endpoint.Register(source.bytes(), transfer::Rights::kRead));
  link_.peer.Region("to", kHuge, 2);
  link_.peer.PostRead("to", region);
  EXPECT_EQ(link_.peer.Outcome(), "done");
  EXPECT_EQ(link_.peer.Digest("to"), Crc32c(source.bytes()));
  EXPECT_EQ(link_.peer.Quit(), 0);
}

TEST_F(Huge, ListOfPagesIsScatteredOnBothSides) {
  const RepeatedMemory source(kPages * kPage);
  const auto region = Must(link_.endpoint.Register(source.bytes(), transfer::Rights::kNone));
  const auto in = Must(link_.connection.Import(link_.peer.Region("in", kPages * kPage, 2)));
  std::vector<TransferPart> parts(1);
  parts[0].local = &region;
  parts[0].remote = &in;
  parts[0].blocks.Reserve(kPages);
  std::uint32_t digest = 0;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  for (std::uint64_t i = 0; i < kPages; ++i) {
    parts[0].blocks.Add({.dst = to * kPage, .src = from * kPage, .len = kPage});
    digest = Crc32c(source.bytes().subspan(from * kPage, kPage), digest);
    from = (from + kSourceStep) % kPages;
    to = (to + kTargetStep) % kPages;
  }
  const auto prepared = Must(link_.connection.PrepareWrite(std::move(parts)));
  EXPECT_EQ(prepared.bytes(), kPages * kPage);
  ExpectOk(Must(link_.connection.Write(prepared)));
  EXPECT_EQ(link_.peer.Ask(fmt::format("page_digest in {} {} {}", kPage, kPages, kTargetStep)),
            std::to_string(digest));
  EXPECT_EQ(link_.peer.Quit(), 0);
}

}  // namespace
}  // namespace ferry::tests
