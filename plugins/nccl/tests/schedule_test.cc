// Sends and receives of several tags in any order: a receive whose message was sent is done in
// time, whatever other messages and receives wait for.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <vector>

#include "ferry/core/testing/random_bytes.h"
#include "plugins/nccl/tests/testing/nccl_host.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;
using testing::CommPair;
using testing::NcclHost;
using testing::PatternOf;
using testing::Require;

using Bytes = std::vector<std::byte>;

constexpr std::array<std::size_t, 8> kScheduleSizes{0,      1,      3000,   16'384,
                                                    40'000, 65'536, 65'537, 200'000};
constexpr std::size_t kLargestSize = 200'000;
constexpr std::size_t kScheduleTags = 3;
constexpr std::size_t kSendsInFlight = 60;
constexpr std::size_t kReceivesInFlight = 24;

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : random_(seed) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) Step();
    // One tag after another, so that nothing of the last ones is asked for meanwhile.
    for (std::size_t t = 0; t < kScheduleTags; ++t) {
      while (tags_[t].received < tags_[t].sent.size()) {
        if (tags_[t].received == tags_[t].posted.size()) Receive(t);
        Await(t);
      }
    }
    const Deadline deadline = Soon();
    while (sends_ > 0 && !deadline.expired()) PollSends();
    EXPECT_EQ(sends_, 0U);
  }

 private:
  struct Message {
    Bytes bytes;
    void* request = nullptr;  // of isend
  };
  struct Place {
    Bytes bytes;
    void* request = nullptr;
  };
  struct Tag {
    std::deque<Message> sent;
    std::deque<Place> posted;
    std::size_t received = 0;  // of them, from the first
  };

  static Deadline Soon() { return Deadline::After(std::chrono::seconds(60)); }
  std::size_t Below(std::size_t count) { return random_() % count; }

  void Step() {
    const std::size_t t = Below(kScheduleTags);
    switch (Below(10)) {
      case 0:
      case 1:
      case 2:
      case 3: return Send(t);
      case 4:
      case 5: return Receive(t);
      case 6: return PollSends();
      default:
        if (tags_[t].received < std::min(tags_[t].sent.size(), tags_[t].posted.size())) Await(t);
    }
  }

  void Send(std::size_t t) {
    if (sends_ == kSendsInFlight) return;
    Message& message = tags_[t].sent.emplace_back();
    message.bytes = PatternOf(kScheduleSizes.at(Below(kScheduleSizes.size())), random_());
    Require(host_->Send(pair_.send,
                        {message.bytes.data(), message.bytes.size(), static_cast<int>(t), nullptr},
                        &message.request),
            "isend");
    ++sends_;
  }

  // Often ahead of its message, and often larger.
  void Receive(std::size_t t) {
    Tag& tag = tags_[t];
    const std::size_t at = tag.posted.size();
    if (receives_ == kReceivesInFlight || at > tag.sent.size() + 2) return;
    const bool exact = at < tag.sent.size() && Below(2) == 0;
    Place& place = tag.posted.emplace_back();
    place.bytes.resize(exact ? tag.sent[at].bytes.size() : kLargestSize);
    Require(host_->Receive(pair_.recv,
                           {place.bytes.data(), place.bytes.size(), static_cast<int>(t), nullptr},
                           &place.request),
            "irecv");
    ++receives_;
  }

  // Polls nothing else: what it takes is there.
  void Await(std::size_t t) {
    Tag& tag = tags_[t];
    Place& place = tag.posted[tag.received];
    const Bytes& expected = tag.sent[tag.received].bytes;
    int bytes = -1;
    ASSERT_EQ(testing::WaitFor(host_, place.request, &bytes, Soon()), abi::kSuccess);
    ASSERT_EQ(bytes, static_cast<int>(expected.size()));
    ASSERT_TRUE(SameBytes(std::span(place.bytes).first(expected.size()), expected));
    place.bytes = {};
    ++tag.received;
    --receives_;
  }

  void PollSends() {
    for (Tag& tag : tags_) {
      for (Message& message : tag.sent) {
        int done = 0;
        if (message.request == nullptr) continue;
        Require(host_->Test(message.request, &done, nullptr), "test");
        if (done == 0) continue;
        message.request = nullptr;
        --sends_;
      }
    }
  }

  std::mt19937_64 random_;
  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  CommPair pair_{&host_, &host_};
  std::array<Tag, kScheduleTags> tags_;
  std::size_t sends_ = 0;     // in flight
  std::size_t receives_ = 0;  // also in flight
};

TEST(Schedule, EveryReceiveWhoseMessageWasSentIsDone) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Schedule(seed).Run(300);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace ferry::nccl_net
