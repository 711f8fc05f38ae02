// Implements layouts and byte patterns of `ferry perf`.

#include "tools/perf/case.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace ferry::tools {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kRegionPage = 4096;

// Vigna's splitmix64: the n-th number of a stream without the ones before it.
constexpr std::uint64_t Mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::uint64_t Word(std::uint64_t key, std::uint64_t index) noexcept {
  return Mix(key + index * 0x9E3779B97F4A7C15);
}

std::uint64_t KeyOf(std::uint64_t seed, std::uint64_t block) noexcept {
  return Mix(seed ^ Mix(block));
}

}  // namespace

const char* OpName(Op op) noexcept {
  switch (op) {
    case Op::kWrite: return "write";
    case Op::kRead: return "read";
    case Op::kSend: return "send";
  }
  return "";
}

Result<Op> ParseOp(std::string_view text) {
  for (const Op op : {Op::kWrite, Op::kRead, Op::kSend}) {
    if (text == OpName(op)) return op;
  }
  return Error(Code::kInvalidArgument,
               fmt::format("unknown operation \"{}\"; choose write, read or send", text));
}

// Blocks lie in every second place, so that no two can be merged into one.
std::uint64_t PerfCase::RegionBytes() const noexcept {
  if (block_size == 0) return size;
  return 2 * ((size + block_size - 1) / block_size) * block_size;
}

std::uint64_t PerfCase::SlotBytes() const noexcept {
  return (RegionBytes() + kRegionPage - 1) / kRegionPage * kRegionPage;
}

Status CheckBlocks(const PerfCase& perf_case) {
  constexpr std::uint64_t kMaxBlocks = std::uint64_t{16} << 20;
  if (perf_case.block_size == 0 || perf_case.size / perf_case.block_size <= kMaxBlocks) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("{} bytes in blocks of {} are {} blocks, {} is the most; give larger "
                           "blocks or a smaller size",
                           perf_case.size, perf_case.block_size,
                           perf_case.size / perf_case.block_size, kMaxBlocks));
}

Layout::Layout(const PerfCase& perf_case, std::uint64_t seed)
    : size_(perf_case.size),
      block_bytes_(perf_case.block_size == 0 ? perf_case.size : perf_case.block_size),
      region_bytes_(perf_case.RegionBytes()),
      slots_((size_ + block_bytes_ - 1) / block_bytes_) {
  std::iota(slots_.begin(), slots_.end(), std::uint64_t{0});
  for (std::uint64_t left = slots_.size(); left > 1; --left) {
    // Fisher and Yates's shuffle, from the seed alone: both sides compute the same order, and only
    // the seed is sent.
    std::swap(slots_[left - 1], slots_[Word(seed, left) % left]);
  }
  for (std::uint64_t& slot : slots_) slot *= 2;
}

std::uint64_t Layout::bytes(std::uint64_t block) const noexcept {
  return std::min(block_bytes_, size_ - block * block_bytes_);
}

BlockList BlocksBetween(const LaidOut& dst, const LaidOut& src) {
  BlockList list;
  list.Reserve(dst.layout.blocks());
  for (std::uint64_t i = 0; i < dst.layout.blocks(); ++i) {
    list.Add({.dst = dst.begin + dst.layout.offset(i),
              .src = src.begin + src.layout.offset(i),
              .len = dst.layout.bytes(i)});
  }
  return list;
}

// Each word depends on the seed, its block and its place, so that bytes of another operation, block
// or offset are found.
void FillPattern(std::span<std::byte> region, const Layout& layout, std::uint64_t seed) {
  for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
    const auto bytes = region.subspan(layout.offset(block), layout.bytes(block));
    const std::uint64_t key = KeyOf(seed, block);
    const std::uint64_t words = bytes.size() / kWord;
    for (std::uint64_t i = 0; i < words; ++i) {
      const std::uint64_t word = Word(key, i);
      std::memcpy(bytes.data() + i * kWord, &word, kWord);
    }
    // The rest of a block, less than a word; nothing where there is none.
    const std::uint64_t word = Word(key, words);
    std::memcpy(bytes.data() + words * kWord, &word, bytes.size() % kWord);
  }
}

std::optional<std::uint64_t> FindWrongByte(std::span<const std::byte> region, const Layout& layout,
                                           std::uint64_t seed) {
  for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
    const auto bytes = region.subspan(layout.offset(block), layout.bytes(block));
    const std::uint64_t begin = block * layout.block_bytes();
    const std::uint64_t key = KeyOf(seed, block);
    const std::uint64_t words = bytes.size() / kWord;
    for (std::uint64_t i = 0; i < words; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i * kWord, kWord);
      if (word != Word(key, i)) return begin + i * kWord;
    }
    const std::uint64_t word = Word(key, words);
    if (std::memcmp(bytes.data() + words * kWord, &word, bytes.size() % kWord) != 0) {
      return begin + words * kWord;
    }
  }
  return std::nullopt;
}

void Poison(std::span<std::byte> region) { std::memset(region.data(), 0xE5, region.size()); }

}  // namespace ferry::tools
