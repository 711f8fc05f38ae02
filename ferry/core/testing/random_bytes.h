// Reproducible random contents for test memory, and their comparison.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

// Contents for test memory.
namespace ferry {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), one word
// at a time: calling a generator for each byte dominates the time of such a test under a sanitizer.
inline void FillRandomly(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = seed += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    word ^= word >> 31;
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i));
  }
}

inline std::vector<std::byte> RandomBytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> random(bytes);
  FillRandomly(random, seed);
  return random;
}

// operator== and std::equal compare std::byte one by one, which took two thirds of the time of
// tests of large payloads under ThreadSanitizer.
inline bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace ferry
