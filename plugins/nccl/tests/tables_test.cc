// Tests the function table of each version, with both ends in this process.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ferry/net/nccl_abi/abi_v12.h"
#include "ferry/net/nccl_abi/abi_v9.h"
#include "plugins/nccl/setup/tuner.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;
using testing::CommPair;
using testing::Logged;
using testing::LoggedText;
using testing::NcclHost;
using testing::PatternOf;
using testing::Require;
using testing::WaitFor;

using Bytes = std::vector<std::byte>;
constexpr std::size_t kMax = 8;  // receives in a group

Deadline Soon() { return Deadline::After(std::chrono::seconds(60)); }

class EveryTable : public ::testing::TestWithParam<int> {
 protected:
  void* Send(const Bytes& from, int tag = 1) {
    void* request = nullptr;
    auto* const data = const_cast<std::byte*>(from.data());
    Require(host_->Send(pair_.send, {data, from.size(), tag, nullptr}, &request), "isend");
    return request;
  }
  void* Receive(Bytes* into, int tag = 1) {
    void* request = nullptr;
    Require(host_->Receive(pair_.recv, {into->data(), into->size(), tag, nullptr}, &request),
            "irecv");
    return request;
  }

  NcclHost host_{FERRY_NCCL_PLUGIN, GetParam()};
  CommPair pair_{&host_, &host_};
};

TEST_P(EveryTable, TellsWhatItIs) {
  EXPECT_STREQ(host_->name(), "Ferry");
  int devices = 0;
  Require(host_->Devices(&devices), "devices");
  ASSERT_EQ(devices, 1);
  tcpx::NicFacts facts;
  Require(host_->Describe(0, &facts), "getProperties");
  EXPECT_FALSE(facts.name.empty());
  EXPECT_TRUE(facts.host_memory);
  EXPECT_FALSE(facts.cuda_memory || facts.dma_buf || facts.unpacks);
  EXPECT_GT(facts.megabits, 0U);
  EXPECT_NE(facts.guid, 0U);
  EXPECT_EQ(facts.most_receives, static_cast<int>(kMax));
  EXPECT_GE(facts.most_comms, 1024);
  EXPECT_EQ(facts.device_type, abi::kDeviceTypeHost);
  EXPECT_EQ(facts.most_message_bytes, std::uint64_t{1} << 30);
  EXPECT_NE(host_->Describe(devices, &facts), abi::kSuccess);
  EXPECT_NE(host_->Describe(-1, &facts), abi::kSuccess);
}

TEST_P(EveryTable, CarriesMessagesOfAllSizes) {
  std::uint64_t seed = 0;
  for (const std::size_t size : {0U, 1U, 7U, 4095U, 65536U, 65537U, 131072U, 1048577U, 9000001U}) {
    const Bytes from = PatternOf(size, ++seed);
    Bytes into(size, std::byte{0xE5});
    void* const receive = Receive(&into);
    void* const send = Send(from);
    int sent = -1;
    int received = -1;
    EXPECT_EQ(WaitFor(host_, send, &sent, Soon()), abi::kSuccess);
    EXPECT_EQ(WaitFor(host_, receive, &received, Soon()), abi::kSuccess);
    EXPECT_EQ(sent, static_cast<int>(size));
    EXPECT_EQ(received, static_cast<int>(size));
    EXPECT_EQ(into, from);
  }
}

TEST_P(EveryTable, SendsBeforeTheReceiveIsPosted) {
  const Bytes small = PatternOf(100, 1);
  const Bytes large = PatternOf(3 << 20, 2);
  std::array<void*, 2> sends{Send(small), Send(large)};
  int done = 1;
  Require(host_->Test(sends[1], &done, nullptr), "test");
  EXPECT_EQ(done, 0);
  Bytes first(small.size());
  Bytes second(large.size());
  std::array<void*, 2> receives{Receive(&first), Receive(&second)};
  for (void* const request : {sends[0], sends[1], receives[0], receives[1]}) {
    EXPECT_EQ(WaitFor(host_, request, nullptr, Soon()), abi::kSuccess);
  }
  EXPECT_EQ(first, small);
  EXPECT_EQ(second, large);
}

TEST_P(EveryTable, KeepsSmallMessagesOfManyTagsUntilTheirReceives) {
  // More than may leave at once, and some that are too large for it.
  constexpr int kTags = 10;
  // The single bytes leave no room for the last of the large ones.
  constexpr std::size_t kUnasked = 2 * kTags + kMaxEarlyTotal / kMaxEarlyBytes - 1;
  const std::array<std::size_t, 4> sizes{0, 1, 65536, 70000};
  std::vector<Bytes> sent;
  std::vector<void*> sends;
  for (const std::size_t size : sizes) {
    for (int tag = 0; tag < kTags; ++tag) {
      sent.push_back(PatternOf(size, sent.size()));
      sends.push_back(Send(sent.back(), tag));
    }
  }
  // The receiver takes what comes, and no other send is done before there is a receive for it.
  for (std::size_t i = 0; i < kUnasked; ++i) {
    ASSERT_EQ(WaitFor(host_, std::exchange(sends[i], nullptr), nullptr, Soon()), abi::kSuccess);
  }
  for (int i = 0; i < 1000; ++i) {
    int done = 0;
    for (void* const send : sends) {
      if (send != nullptr) Require(host_->Test(send, &done, nullptr), "test");
      ASSERT_EQ(done, 0);
    }
  }
  for (int tag = kTags - 1; tag >= 0; --tag) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Bytes into(sizes[i], std::byte{0xE5});
      ASSERT_EQ(WaitFor(host_, Receive(&into, tag), nullptr, Soon()), abi::kSuccess);
      EXPECT_EQ(into, sent[i * kTags + static_cast<std::size_t>(tag)]);
    }
  }
  for (void* const send : sends) {
    if (send == nullptr) continue;
    EXPECT_EQ(WaitFor(host_, send, nullptr, Soon()), abi::kSuccess);
  }
}

// The receiver does not tell of its last receive by itself, which only messages of the other tag,
// that have left since, keep from the sender.
TEST_P(EveryTable, ReceivesWhatWaitsBehindSmallMessagesOfAnotherTag) {
  const Bytes message = PatternOf(100, 1);
  std::vector<void*> first;
  std::vector<void*> others;
  for (std::size_t i = 0; i < kMaxEarly; ++i) first.push_back(Send(message, 1));
  for (std::size_t i = 0; i < kMaxEarly; ++i) others.push_back(Send(message, 2));
  first.push_back(Send(message, 1));
  Bytes into(100);
  for (std::size_t i = 0; i < kMaxEarly; ++i) {
    ASSERT_EQ(WaitFor(host_, Receive(&into, 1), nullptr, Soon()), abi::kSuccess);
  }
  for (void* const send : others) EXPECT_EQ(WaitFor(host_, send, nullptr, Soon()), abi::kSuccess);
  ASSERT_EQ(WaitFor(host_, Receive(&into, 1), nullptr, Soon()), abi::kSuccess);
  for (void* const send : first) EXPECT_EQ(WaitFor(host_, send, nullptr, Soon()), abi::kSuccess);
}

// Receives with much room are told one by one, and each time there is room for a small message from
// behind the one that waits.
TEST_P(EveryTable, ReceivesWhatSmallerMessagesHaveOvertaken) {
  std::vector<std::size_t> sizes(33, 32'768);
  sizes[16] = 65'536;
  std::vector<Bytes> sent;
  std::vector<void*> sends;
  for (const std::size_t size : sizes) {
    sent.push_back(PatternOf(size, sent.size()));
    sends.push_back(Send(sent.back()));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Bytes into(i < 16 ? 1 << 20 : 65'536);
    ASSERT_EQ(WaitFor(host_, Receive(&into), nullptr, Soon()), abi::kSuccess) << i;
    EXPECT_TRUE(std::equal(sent[i].begin(), sent[i].end(), into.begin()));
    // The values that were set are read and used.
    for (int polls = 0; polls < 1000; ++polls) {
      for (void*& send : sends) {
        int done = 0;
        if (send != nullptr) Require(host_->Test(send, &done, nullptr), "test");
        if (done != 0) send = nullptr;
      }
    }
  }
  for (void* const send : sends) {
    if (send == nullptr) continue;
    EXPECT_EQ(WaitFor(host_, send, nullptr, Soon()), abi::kSuccess);
  }
}

TEST_P(EveryTable, TellsTheSizeOfAMessageThatIsShorterThanItsReceive) {
  for (const std::size_t size : {0U, 5U, 200'000U}) {
    const Bytes from = PatternOf(size, size);
    Bytes into(1 << 20, std::byte{0xE5});
    void* const receive = Receive(&into);
    void* const send = Send(from);
    int received = -1;
    EXPECT_EQ(WaitFor(host_, receive, &received, Soon()), abi::kSuccess);
    EXPECT_EQ(WaitFor(host_, send, nullptr, Soon()), abi::kSuccess);
    EXPECT_EQ(received, static_cast<int>(size));
    EXPECT_TRUE(std::equal(from.begin(), from.end(), into.begin()));
    EXPECT_EQ(
        std::count(into.begin() + static_cast<std::ptrdiff_t>(size), into.end(), std::byte{0xE5}),
        static_cast<std::ptrdiff_t>(into.size() - size));
  }
}

TEST_P(EveryTable, RefusesAMessageThatIsLongerThanItsReceive) {
  const Bytes from = PatternOf(70'000, 1);
  Bytes into(69'999, std::byte{0xE5});
  void* const receive = Receive(&into);
  (void)Send(from);
  EXPECT_EQ(WaitFor(host_, receive, nullptr, Soon()), abi::kInvalidUsage);
  EXPECT_EQ(std::count(into.begin(), into.end(), std::byte{0xE5}), 69'999);
  EXPECT_TRUE(Logged("a message of 70000 bytes with tag 1 is larger than the 69999"))
      << LoggedText();
  // The connection is of no use from then on, and says so.
  void* request = nullptr;
  EXPECT_NE(host_->Receive(pair_.recv, {into.data(), into.size(), 1, nullptr}, &request),
            abi::kSuccess);
}

// Its receive has not been told, and the sender asks for it.
TEST_P(EveryTable, RefusesALargeMessageForASmallReceive) {
  const Bytes from = PatternOf(70'000, 1);
  Bytes into(8, std::byte{0xE5});
  void* const receive = Receive(&into);
  void* const send = Send(from);
  int done = 0;
  const Deadline deadline = Soon();
  while (host_->Test(receive, &done, nullptr) == abi::kSuccess) {
    ASSERT_FALSE(done != 0 || deadline.expired());
    (void)host_->Test(send, &done, nullptr);
  }
  EXPECT_EQ(into, Bytes(8, std::byte{0xE5}));
  EXPECT_TRUE(Logged("a message of 70000 bytes with tag 1 is larger than the 8")) << LoggedText();
}

TEST_P(EveryTable, HasAsManyRequestsAsItMust) {
  std::vector<Bytes> places(abi::kMaxRequests, Bytes(64));
  std::vector<void*> receives;
  for (Bytes& place : places) receives.push_back(Receive(&place));
  EXPECT_EQ(std::count(receives.begin(), receives.end(), nullptr), 0);
  EXPECT_EQ(Receive(&places[0]), nullptr);
  std::vector<Bytes> messages;
  std::vector<void*> sends;
  for (std::size_t i = 0; i < abi::kMaxRequests * kMax; ++i) {
    messages.push_back(PatternOf(i % 65, i));
  }
  for (const Bytes& message : messages) sends.push_back(Send(message));
  EXPECT_EQ(std::count(sends.begin(), sends.end(), nullptr), 0);
  EXPECT_EQ(Send(messages[0]), nullptr);
  for (std::size_t round = 0; round < kMax; ++round) {
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const std::size_t number = round * receives.size() + i;
      int bytes = -1;
      EXPECT_EQ(WaitFor(host_, receives[i], &bytes, Soon()), abi::kSuccess);
      ASSERT_EQ(bytes, static_cast<int>(number % 65));
      EXPECT_TRUE(std::equal(messages[number].begin(), messages[number].end(), places[i].begin()));
      EXPECT_EQ(WaitFor(host_, sends[number], nullptr, Soon()), abi::kSuccess);
      if (round + 1 < kMax) receives[i] = Receive(&places[i]);
    }
  }
}

TEST_P(EveryTable, FillsAGroupOfReceivesByTagInAnyOrder) {
  for (const bool backwards : {false, true}) {
    std::vector<Bytes> messages;
    std::vector<Bytes> places;
    for (std::size_t i = 0; i < kMax; ++i) {
      messages.push_back(PatternOf(i * 40'000, i));
      places.emplace_back(400'000);
    }
    std::vector<tcpx::Message> group;
    for (std::size_t i = 0; i < kMax; ++i) {
      group.push_back({places[i].data(), places[i].size(), static_cast<int>(100 + i), nullptr});
    }
    void* receive = nullptr;
    Require(host_->ReceiveGroup(pair_.recv, group, &receive), "irecv");
    std::vector<void*> sends;
    for (std::size_t i = 0; i < kMax; ++i) {
      const std::size_t which = backwards ? kMax - 1 - i : i;
      sends.push_back(Send(messages[which], static_cast<int>(100 + which)));
    }
    std::array<int, kMax> sizes{};
    EXPECT_EQ(WaitFor(host_, receive, sizes.data(), Soon()), abi::kSuccess);
    for (void* const send : sends) EXPECT_EQ(WaitFor(host_, send, nullptr, Soon()), abi::kSuccess);
    for (std::size_t i = 0; i < kMax; ++i) {
      EXPECT_EQ(sizes[i], static_cast<int>(messages[i].size()));
      EXPECT_TRUE(std::equal(messages[i].begin(), messages[i].end(), places[i].begin()));
    }
  }
}

TEST_P(EveryTable, KeepsTheOrderOfMessagesWithOneTag) {
  constexpr int kMessages = 400;
  int sent = 0;
  int received = 0;
  std::vector<Bytes> messages;
  for (int i = 0; i < kMessages; ++i) {
    messages.push_back(PatternOf(i % 3 == 0 ? 50'000 : 30, static_cast<std::uint64_t>(i)));
  }
  std::vector<Bytes> places(16, Bytes(50'000));
  std::vector<std::pair<int, void*>> sends;
  std::vector<std::pair<int, void*>> receives;
  while (received < kMessages) {
    while (sent < kMessages && sends.size() < 16) {
      sends.emplace_back(sent, Send(messages[static_cast<std::size_t>(sent)]));
      ++sent;
    }
    while (received + static_cast<int>(receives.size()) < kMessages && receives.size() < 16) {
      const int next = received + static_cast<int>(receives.size());
      receives.emplace_back(next, Receive(&places[static_cast<std::size_t>(next % 16)]));
    }
    const auto [number, request] = receives.front();
    int bytes = 0;
    ASSERT_EQ(WaitFor(host_, request, &bytes, Soon()), abi::kSuccess);
    const Bytes& expected = messages[static_cast<std::size_t>(number)];
    ASSERT_EQ(bytes, static_cast<int>(expected.size()));
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                           places[static_cast<std::size_t>(number % 16)].begin()));
    receives.erase(receives.begin());
    ++received;
    ASSERT_EQ(WaitFor(host_, sends.front().second, nullptr, Soon()), abi::kSuccess);
    sends.erase(sends.begin());
  }
}

TEST_P(EveryTable, RegistersMemoryOfTheHostOnly) {
  Bytes memory(100);
  void* mr = nullptr;
  Require(host_->Register(pair_.send, memory.data(), memory.size(), abi::kPointerHost, &mr),
          "regMr");
  EXPECT_NE(mr, nullptr);
  Require(host_->Deregister(pair_.send, mr), "deregMr");
  EXPECT_NE(host_->Register(pair_.send, memory.data(), memory.size(), abi::kPointerCuda, &mr),
            abi::kSuccess);
}

TEST_P(EveryTable, HasNothingToFlush) {
  Bytes memory(100);
  void* request = this;
  Require(host_->Flush(pair_.recv, {memory.data(), memory.size(), 0, nullptr}, &request), "iflush");
  EXPECT_EQ(request, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Nccl, EveryTable, ::testing::Range(7, 13),
                         ::testing::PrintToStringParamName());

template <class Table>
Table* TableOf(const char* symbol) {
  void* const library = ::dlopen(FERRY_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  return static_cast<Table*>(::dlsym(library, symbol));
}

class Tuner : public ::testing::Test {
 protected:
  static constexpr int kAlgorithms = 7;
  static constexpr int kProtocols = 3;
  static constexpr int kAllGather = 2;
  static constexpr int kAllReduce = 4;
  // The tuner's answer for a collective of two ranks or more: the number of channels (0: NCCL's
  // default), and what is left of `costs`.
  int Ask(std::size_t ranks, std::size_t nodes, std::size_t bytes,
          std::vector<float>* costs = nullptr, int collective = kAllReduce) {
    void* context = nullptr;
    Require(tuner_->init(ranks, nodes, nullptr, &context), "init of the tuner");
    int channels = 0;
    Require(tuner_->get_coll_info(context, collective, bytes, 1,
                                  costs == nullptr ? nullptr : costs->data(), kAlgorithms,
                                  kProtocols, 0, &channels),
            "getCollInfo");
    Require(tuner_->destroy(context), "destroy of the tuner");
    return channels;
  }
  static std::vector<float> AllAt(float cost) {
    return std::vector<float>(std::size_t{kAlgorithms} * kProtocols, cost);
  }
  static float At(const std::vector<float>& costs, std::size_t algorithm, std::size_t protocol) {
    return costs[algorithm * kProtocols + protocol];
  }

  const NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  TunerV4* const tuner_ = TableOf<TunerV4>("ncclTunerPlugin_v4");
};

TEST_F(Tuner, KeepsShortCollectivesBetweenNodesToFewChannelsAndLongOnesToThoseAskedFor) {
  EXPECT_STREQ(std::getenv("NCCL_MIN_NCHANNELS"), "8");  // NCCL reads it later
  EXPECT_EQ(Ask(2, 2, 16 << 10), kFewChannels);
  EXPECT_EQ(Ask(2, 2, (4 << 20) - 1), kFewChannels);
  EXPECT_EQ(Ask(2, 2, 4 << 20), 8);
  EXPECT_EQ(Ask(64, 8, 128 << 20), 8);
  // As NCCL chooses.
  EXPECT_EQ(Ask(2, 2, (16 << 10) - 1), 0);
  EXPECT_EQ(Ask(64, 8, 64 << 20), 0);
  EXPECT_EQ(Ask(256, 32, 1 << 19), 0);
  EXPECT_EQ(Ask(8, 1, 1 << 19), 0);
  EXPECT_EQ(Ask(8, 1, 1 << 30), 0);
}

// NCCL from 2.29 on does not bound the number that is said for grouped broadcasts, which it asks
// for as an all-gather, by the channels that the communicator has; between nodes it has two at
// least.
TEST_F(Tuner, AsksForNoMoreChannelsOfAnAllGatherThanEveryCommunicatorHas) {
  for (const std::size_t bytes : {16U << 10, 1U << 20, 4U << 20, 128U << 20, 1U << 30}) {
    EXPECT_LE(Ask(2, 2, bytes, nullptr, kAllGather), kFewChannels) << bytes;
    EXPECT_LE(Ask(64, 8, bytes, nullptr, kAllGather), kFewChannels) << bytes;
  }
}

TEST_F(Tuner, TakesBackTheProtocolOfSmallMessagesWhereThereIsMore) {
  for (const std::size_t ranks : {2U, 16U}) {
    auto costs = AllAt(5);
    Ask(ranks, 8, (128 << 10) * ranks - 1, &costs);
    EXPECT_EQ(costs, AllAt(5));
    costs[0 * kProtocols + 2] = -1;  // a tree has no other
    Ask(ranks, 8, (128 << 10) * ranks, &costs);
    for (std::size_t algorithm = 0; algorithm < kAlgorithms; ++algorithm) {
      EXPECT_EQ(At(costs, algorithm, 0), algorithm == 0 ? 5 : -1) << algorithm;
      EXPECT_EQ(At(costs, algorithm, 1), 5) << algorithm;
      EXPECT_EQ(At(costs, algorithm, 2), algorithm == 0 ? -1 : 5) << algorithm;
    }
  }
}

TEST_F(Tuner, TakesBackTreesOfManyStepsBetweenTwoNodesWhereThereIsARing) {
  auto costs = AllAt(5);
  Ask(2, 2, 1000, &costs);
  for (std::size_t protocol = 0; protocol < kProtocols; ++protocol) {
    EXPECT_EQ(At(costs, 6, protocol), -1);
  }
  EXPECT_EQ(std::count(costs.begin(), costs.end(), 5.0F), 6 * kProtocols);
  auto more_nodes = AllAt(5);
  Ask(3, 3, 1000, &more_nodes);
  EXPECT_EQ(more_nodes, AllAt(5));
  auto no_ring = AllAt(5);
  no_ring[1 * kProtocols + 2] = -1;
  const auto before = no_ring;
  Ask(2, 2, 1000, &no_ring);
  EXPECT_EQ(no_ring, before);
}

TEST_F(Tuner, BearsTablesThatAreSmaller) {
  void* context = nullptr;
  Require(tuner_->init(2, 2, nullptr, &context), "init of the tuner");
  std::vector<float> costs{1, 2, 3, 4};
  int channels = 0;
  Require(tuner_->get_coll_info(context, 4, 1 << 20, 1, costs.data(), 2, 2, 0, &channels),
          "getCollInfo");
  EXPECT_EQ(costs, (std::vector<float>{1, 2, 3, 4}));
  Require(tuner_->destroy(context), "destroy of the tuner");
}

TEST(Tables, FillEveryPropertyOfTheNewestVersion) {
  const NcclHost host(FERRY_NCCL_PLUGIN, 12);
  auto* const table = TableOf<abi::TableV12>("ncclNetPlugin_v12");
  ASSERT_NE(table, nullptr);
  abi::PropertiesV12 properties;
  std::memset(static_cast<void*>(&properties), 0xE5, sizeof properties);
  Require(table->get_properties(0, &properties), "getProperties");
  EXPECT_EQ(properties.reg_is_global, 0);
  EXPECT_EQ(properties.force_flush, 0);
  EXPECT_EQ(properties.virtual_device.count, 1);
  EXPECT_EQ(properties.virtual_device.devices[0], 0);
  EXPECT_EQ(properties.device_version, 0);
  EXPECT_EQ(properties.max_coll_bytes, std::size_t{1} << 30);
  EXPECT_EQ(properties.max_multi_request_size, 1);
  EXPECT_EQ(properties.rail, -1);
  EXPECT_EQ(properties.plane, -1);
  EXPECT_EQ(properties.latency, 10);  // microseconds
  EXPECT_EQ(table->reg_mr_dma_buf, nullptr);
  EXPECT_EQ(table->make_virtual_device, nullptr);
  EXPECT_EQ(table->get_device_mr, nullptr);
  EXPECT_EQ(table->irecv_consumed, nullptr);
}

TEST(NullTransport, CompletesAMessageThatBothSidesHavePostedAndMovesNothing) {
  NcclHost host(FERRY_NCCL_NULL, 10);
  CommPair pair(&host, &host);
  Bytes from = PatternOf(1000, 1);
  Bytes into(2000, std::byte{0xE5});
  void* send = nullptr;
  void* receive = nullptr;
  Require(host->Send(pair.send, {from.data(), from.size(), 1, nullptr}, &send), "isend");
  int done = 1;
  Require(host->Test(send, &done, nullptr), "test");
  EXPECT_EQ(done, 0);
  Require(host->Receive(pair.recv, {into.data(), into.size(), 1, nullptr}, &receive), "irecv");
  int received = 0;
  EXPECT_EQ(WaitFor(host, receive, &received, Soon()), abi::kSuccess);
  EXPECT_EQ(WaitFor(host, send, nullptr, Soon()), abi::kSuccess);
  EXPECT_EQ(received, 1000);
  EXPECT_EQ(into, Bytes(2000, std::byte{0xE5}));
}

TEST(Tables, OverwriteTheHintThatNcclLeavesInARequest) {
  NcclHost host(FERRY_NCCL_PLUGIN, 9);
  CommPair pair(&host, &host);
  auto* const table = TableOf<abi::TableV9>("ncclNetPlugin_v9");
  std::vector<Bytes> places(abi::kMaxRequests + 1, Bytes(8));
  for (std::size_t i = 0; i < places.size(); ++i) {
    // NCCL_NET_OPTIONAL_RECV_COMPLETION
    void* request = reinterpret_cast<void*>(std::uintptr_t{1});
    void* data = places[i].data();
    std::size_t bytes = 8;
    int tag = 3;
    void* mr = nullptr;
    Require(table->irecv(pair.recv, 1, &data, &bytes, &tag, &mr, &request), "irecv");
    EXPECT_NE(request, reinterpret_cast<void*>(std::uintptr_t{1}));
    EXPECT_EQ(request == nullptr, i == abi::kMaxRequests);
  }
}

}  // namespace
}  // namespace ferry::nccl_net
