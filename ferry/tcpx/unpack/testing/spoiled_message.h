// Messages whose fragments are partly wrong, and a slow check of them.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "ferry/tcpx/unpack/fragments.h"
#include "ferry/tcpx/unpack/testing/scatter.h"

namespace ferry::tcpx {

// Where each byte of the place comes from, found byte by byte; none where fragments are wrong.
using Origins = std::vector<std::optional<std::uint64_t>>;

inline std::optional<Origins> ReferenceOrigins(const std::vector<Fragment>& fragments,
                                               const PostedReceive& receive,
                                               std::uint64_t place_bytes) {
  Origins message(receive.message_bytes);
  for (const Fragment& fragment : fragments) {
    if (fragment.len == 0) return std::nullopt;
    for (std::uint64_t i = 0; i < fragment.len; ++i) {
      const std::uint64_t src = std::uint64_t{fragment.src} + i;
      const std::uint64_t dst = fragment.dst + i;
      if (src >= receive.pool_bytes || dst < fragment.dst || dst >= message.size() ||
          message[dst]) {
        return std::nullopt;
      }
      message[dst] = src;
    }
  }
  if (fragments.size() > kMaxFragments) return std::nullopt;
  Origins place(place_bytes);
  std::size_t at = 0;
  for (const PostedRun& run : receive.runs) {
    for (std::uint64_t i = 0; i < run.bytes && at < message.size(); ++i) {
      if (!message[at]) return std::nullopt;
      place[run.offset + i] = message[at++];
    }
  }
  if (at < message.size()) return std::nullopt;  // no room for the rest
  return place;
}

class Corruption {
 public:
  explicit Corruption(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t end) { return random_() % end; }

  // Changes something, or one thing after another that may come to nothing.
  void Spoil(std::vector<Fragment>* fragments, PostedReceive* receive) {
    for (std::uint64_t i = Below(4); i > 0; --i) SpoilOnce(fragments, receive);
  }

 private:
  std::uint64_t Near(std::uint64_t value) {
    switch (Below(6)) {
      case 0: return value + 1;
      case 1: return value - 1;
      case 2: return value + Below(50) - 25;
      case 3: return std::numeric_limits<std::uint64_t>::max() - Below(3000);
      case 4: return Below(3000);
      default: return Below(3);
    }
  }
  void SpoilField(Fragment* fragment) {
    switch (Below(3)) {
      case 0: fragment->src = static_cast<std::uint32_t>(Near(fragment->src)); break;
      case 1: fragment->len = static_cast<std::uint32_t>(Near(fragment->len)); break;
      default: fragment->dst = Near(fragment->dst);
    }
  }
  void SpoilOnce(std::vector<Fragment>* fragments, PostedReceive* receive) {
    if (fragments->empty()) {
      fragments->push_back({1, 1, 0});
      return;
    }
    Fragment& one = (*fragments)[Below(fragments->size())];
    Fragment& other = (*fragments)[Below(fragments->size())];
    switch (Below(8)) {
      case 0: one = other; break;
      case 1:
        std::swap(one.dst, other.dst);  // harmless where they are of one length
        break;
      case 2:
        std::swap(one, other);  // harmless
        break;
      case 3:
        one = fragments->back();
        fragments->pop_back();
        break;
      case 4: receive->message_bytes = Below(2 * receive->message_bytes + 2); break;
      case 5: receive->pool_bytes = Below(receive->pool_bytes + 40); break;
      default: SpoilField(&one);
    }
  }

  std::mt19937_64 random_;
};

// Messages 0 to this one are tested; both right and wrong ones are many of them.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kSpoiledMessages = 1'500;  // the other builds check the values
#else
inline constexpr std::uint64_t kSpoiledMessages = 20'000;
#endif

// A message of up to 600 bytes, of which something may have been changed.
struct SpoiledMessage {
  explicit SpoiledMessage(std::uint64_t number) {
    Corruption corruption(number);
    const std::uint64_t bytes = corruption.Below(600);
    Scattered made =
        Scatter(LengthsOf(bytes, 1, static_cast<std::uint32_t>(1 + number % 90), number),
                {.seed = number, .most_gap = number % 3, .in_order = number % 5 == 0});
    ScatteredRuns scattered =
        ScatterRuns(LengthsOf(bytes + corruption.Below(50), 1,
                              static_cast<std::uint32_t>(1 + number % 400), number),
                    number);
    fragments = std::move(made.fragments);
    runs = std::move(scattered.runs);
    place_end = scattered.place_end;
    pool_end = made.pool_end;
    receive = {pool_end, bytes, runs};
    corruption.Spoil(&fragments, &receive);
  }
  SpoiledMessage(const SpoiledMessage&) = delete;  // `receive` refers to `runs`
  SpoiledMessage& operator=(const SpoiledMessage&) = delete;

  std::vector<Fragment> fragments;
  std::vector<PostedRun> runs;
  PostedReceive receive;
  std::uint64_t place_end = 0;
  std::uint64_t pool_end = 0;  // of the bytes that fragments were made for
};
inline std::optional<Origins> ReferenceOrigins(const SpoiledMessage& message) {
  return ReferenceOrigins(message.fragments, message.receive, message.place_end);
}

}  // namespace ferry::tcpx
