// Traces bytes that a transfer should have replaced to the earlier operation that wrote them.
#include "tests/soak/sent_history.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/guarded_memory.h"

namespace ferry::tests {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
// Bytes that are right by chance do not end a stretch.
constexpr std::size_t kGap = 16;
constexpr std::size_t kStretchesShown = 12;
constexpr std::size_t kWritesShown = 4;

}  // namespace

void SentHistory::AddFill(std::uint64_t bytes, std::uint64_t seed) {
  fills_.push_back({bytes, seed});
  if (fills_.size() <= kKept) return;
  fills_.pop_front();
  ++fills_dropped_;
}

void SentHistory::AddWrite(std::string what, std::uint64_t bytes, int connection) {
  writes_.push_back({std::move(what), bytes, connection, ++writes_made_,
                     fills_dropped_ + fills_.size(), "in flight"});
  if (writes_.size() > kKept) writes_.pop_front();
}

void SentHistory::SetEnd(const std::string& what, std::string end) {
  const auto it = std::find_if(writes_.rbegin(), writes_.rend(),
                               [&](const WriteRecord& write) { return write.what == what; });
  if (it != writes_.rend()) it->end = std::move(end);
}

std::vector<SentHistory::Stretch> SentHistory::Differences(std::span<const std::byte> got,
                                                           std::span<const std::byte> expected) {
  std::vector<Stretch> stretches;
  for (std::size_t at = 0; at < got.size(); ++at) {
    if (got[at] == expected[at]) continue;
    if (stretches.empty() || at - stretches.back().end > kGap) stretches.push_back({at, at});
    stretches.back().end = at + 1;
  }
  return stretches;
}

// The number of the latest fill that has these bytes at this word.
std::optional<std::uint64_t> SentHistory::FillOf(std::span<const std::byte> got,
                                                 std::size_t word) const {
  if ((word + 1) * kWordBytes > got.size()) return std::nullopt;
  std::uint64_t found = 0;
  std::memcpy(&found, got.data() + word * kWordBytes, kWordBytes);
  for (std::size_t i = fills_.size(); i-- > 0;) {
    if (PatternWord(fills_[i].seed, word) == found) return fills_dropped_ + i;
  }
  return std::nullopt;
}

// Whether the source had the fill at this offset when the write was posted.
bool SentHistory::Carried(const WriteRecord& write, std::uint64_t fill,
                          std::uint64_t offset) const {
  if (write.bytes <= offset || write.fills <= fill) return false;
  for (std::uint64_t later = fill + 1; later < write.fills; ++later) {
    if (fills_[later - fills_dropped_].bytes > offset) return false;
  }
  return true;
}

std::string SentHistory::SourceOf(std::span<const std::byte> got, const Stretch& stretch) const {
  const auto bytes = got.subspan(stretch.begin, stretch.end - stretch.begin);
  const bool same = std::all_of(bytes.begin(), bytes.end(),
                                [&](std::byte each) { return each == bytes.front(); });
  if (same) {
    return fmt::format("all bytes {:#04x}", std::to_integer<unsigned>(bytes.front()));
  }
  const std::size_t word = (stretch.begin + kWordBytes - 1) / kWordBytes;
  const auto fill = FillOf(got, word);
  if (!fill) return "of no earlier fill";
  std::string text = fmt::format("of fill {}, {} before the present one", *fill,
                                 fills_dropped_ + fills_.size() - 1 - *fill);
  std::size_t shown = 0;
  for (auto write = writes_.rbegin(); write != writes_.rend() && shown < kWritesShown; ++write) {
    if (!Carried(*write, *fill, word * kWordBytes)) continue;
    text += fmt::format("; {} {} of {} bytes over connection {}, ended {}", write->what,
                        write->number, write->bytes, write->connection, write->end);
    ++shown;
  }
  return text;
}

std::string SentHistory::Explain(std::span<const std::byte> got,
                                 std::span<const std::byte> expected) const {
  const std::vector<Stretch> stretches = Differences(got, expected);
  std::size_t wrong = 0;
  for (const Stretch& stretch : stretches) wrong += stretch.end - stretch.begin;
  std::string text = fmt::format("{} bytes in {} stretches; write {} is the latest", wrong,
                                 stretches.size(), writes_made_);
  for (std::size_t i = 0; i < std::min(stretches.size(), kStretchesShown); ++i) {
    text += fmt::format("\n  {} bytes at {}: {}", stretches[i].end - stretches[i].begin,
                        stretches[i].begin, SourceOf(got, stretches[i]));
  }
  return text;
}

}  // namespace ferry::tests
