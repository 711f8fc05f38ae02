// Traces bytes that a transfer should have replaced to the earlier operation that wrote them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ferry::tests {

// What one client filled its source with, and what it wrote of it where, for the failure text of a
// test. Source and destination have the same offsets. For one thread.
class SentHistory {
 public:
  // The first `bytes` of the source are those of Fill(seed) from now on.
  void AddFill(std::uint64_t bytes, std::uint64_t seed);
  // An operation writes the first `bytes` of the source. `connection`: its number.
  void AddWrite(std::string what, std::uint64_t bytes, int connection);
  // How the latest operation of this name ended.
  void SetEnd(const std::string& what, std::string end);

  // Describes how `got` differs from `expected`: how many bytes in which stretches, and for each
  // stretch which earlier writes, the latest first, had those bytes at that place.
  std::string Explain(std::span<const std::byte> got, std::span<const std::byte> expected) const;

 private:
  struct FillRecord {
    std::uint64_t bytes;
    std::uint64_t seed;
  };
  struct WriteRecord {
    std::string what;
    std::uint64_t bytes;
    int connection;
    std::uint64_t number;  // of all
    std::uint64_t fills;   // before it
    std::string end;
  };
  struct Stretch {
    std::size_t begin;
    std::size_t end;
  };
  // Older entries are dropped: what is still on its way is recent.
  static constexpr std::size_t kKept = 4096;

  static std::vector<Stretch> Differences(std::span<const std::byte> got,
                                          std::span<const std::byte> expected);
  std::string SourceOf(std::span<const std::byte> got, const Stretch& stretch) const;
  std::optional<std::uint64_t> FillOf(std::span<const std::byte> got, std::size_t word) const;
  bool Carried(const WriteRecord& write, std::uint64_t fill, std::uint64_t offset) const;

  std::deque<FillRecord> fills_;
  std::deque<WriteRecord> writes_;
  std::uint64_t fills_dropped_ = 0;
  std::uint64_t writes_made_ = 0;
};

}  // namespace ferry::tests
