// Scattered messages for tests, and their slow reassembly.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "ferry/tcpx/unpack/fragments.h"

// Scatters a message over a pool, as a network interface does, and reassembles it slowly.
namespace ferry::tcpx {

struct ScatterOptions {
  std::uint64_t seed = 1;
  std::uint64_t begin = 0;      // start of the used part of the pool
  std::uint64_t most_gap = 40;  // between fragments there, bytes
  bool in_order = false;        // fragments sorted by destination
};

struct Scattered {
  std::vector<Fragment> fragments;
  std::uint64_t bytes = 0;     // of the message
  std::uint64_t pool_end = 0;  // end of the used part of the pool
};

// A message with fragments of these lengths, each somewhere in the pool.
inline Scattered Scatter(std::span<const std::uint32_t> lengths, const ScatterOptions& options) {
  std::mt19937_64 random(options.seed);
  Scattered made;
  for (const std::uint32_t len : lengths) {
    made.fragments.push_back({0, len, made.bytes});
    made.bytes += len;
  }
  std::vector<std::size_t> places(lengths.size());
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  made.pool_end = options.begin;
  for (const std::size_t i : places) {
    made.pool_end += random() % (options.most_gap + 1);
    made.fragments[i].src = static_cast<std::uint32_t>(made.pool_end);
    made.pool_end += lengths[i];
  }
  if (!options.in_order) std::shuffle(made.fragments.begin(), made.fragments.end(), random);
  return made;
}

// Consecutive runs of the message, scattered with gaps over the destination.
struct ScatteredRuns {
  std::vector<PostedRun> runs;
  std::uint64_t place_end = 0;
};
inline ScatteredRuns ScatterRuns(std::span<const std::uint32_t> lengths, std::uint64_t seed) {
  const Scattered placed = Scatter(lengths, {.seed = seed, .begin = 3, .in_order = true});
  ScatteredRuns made{{}, placed.pool_end};
  for (const Fragment& fragment : placed.fragments) {
    made.runs.push_back({fragment.src, fragment.len});
  }
  return made;
}

// Lengths from `least` to `most` with a total of `bytes`; the last may be shorter.
inline std::vector<std::uint32_t> LengthsOf(std::uint64_t bytes, std::uint32_t least,
                                            std::uint32_t most, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> lengths;
  while (bytes > 0) {
    const std::uint64_t len = std::min<std::uint64_t>(bytes, least + random() % (most - least + 1));
    lengths.push_back(static_cast<std::uint32_t>(len));
    bytes -= len;
  }
  return lengths;
}

// Reassembles a message from correct fragments, through a copy of the whole message.
inline void PutInPlace(const Scattered& message, std::span<const PostedRun> runs,
                       std::span<const std::byte> pool, std::span<std::byte> place) {
  std::vector<std::byte> whole(message.bytes);
  for (const Fragment& fragment : message.fragments) {
    for (std::uint64_t i = 0; i < fragment.len; ++i) {
      whole[fragment.dst + i] = pool[fragment.src + i];
    }
  }
  std::uint64_t at = 0;
  for (const PostedRun& run : runs) {
    for (std::uint64_t i = 0; i < run.bytes && at < whole.size(); ++i) {
      place[run.offset + i] = whole[at++];
    }
  }
}

}  // namespace ferry::tcpx
