// Connections that come and go, in one process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/nccl/tests/nccl_peer.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "tests/support/peer_process.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;
using testing::CommPair;
using testing::Logged;
using testing::LoggedText;
using testing::NcclConnect;
using testing::NcclHost;
using testing::NcclListen;
using testing::PatternOf;
using testing::Require;
using testing::ScopedVariable;
using testing::WaitFor;

using Bytes = std::vector<std::byte>;

Deadline Shortly() { return Deadline::After(std::chrono::seconds(60)); }

void* Post(CommPair& pair, bool send, Bytes* memory, int tag = 1) {
  void* request = nullptr;
  const tcpx::Message message{memory->data(), memory->size(), tag, nullptr};
  Require(send ? (*pair.from)->Send(pair.send, message, &request)
               : (*pair.to)->Receive(pair.recv, message, &request),
          send ? "isend" : "irecv");
  return request;
}

void Exchange(CommPair& pair, std::size_t size, std::uint64_t seed) {
  Bytes from = PatternOf(size, seed);
  Bytes into(size);
  void* const receive = Post(pair, false, &into);
  void* const send = Post(pair, true, &from);
  Require(WaitFor(*pair.from, send, nullptr, Shortly()), "test of isend");
  Require(WaitFor(*pair.to, receive, nullptr, Shortly()), "test of irecv");
  if (into != from) throw std::runtime_error("other bytes arrived");
}

TEST(Lifetime, ListenAcceptAndConnectNeverWait) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  void* recv = nullptr;
  // Nobody is there.
  Require(listen.TryAccept(&recv), "accept");
  EXPECT_EQ(recv, nullptr);
  NcclConnect connect(&host, listen.handle());
  void* send = nullptr;
  Require(connect.TryConnect(&send), "connect");
  EXPECT_EQ(send, nullptr);
  send = connect.Connect(Shortly());
  recv = listen.Accept(Shortly());
  Require(host->CloseSend(send), "closeSend");
  Require(host->CloseReceive(recv), "closeRecv");
}

// A host that is asked to show five; null where an earlier test of this process has left the plugin
// initialised, as versions without contexts do.
std::unique_ptr<NcclHost> WithFiveDevices() {
  (void)::setenv("FERRY_NCCL_DEVICES", "5", /*overwrite=*/1);
  const std::size_t before = LoggedText().size();
  auto host = std::make_unique<NcclHost>(FERRY_NCCL_PLUGIN, 12);
  (void)::unsetenv("FERRY_NCCL_DEVICES");
  if (!Logged("descriptors", before)) return nullptr;
  return host;
}

TEST(Devices, AreAsManyAsAreAskedForAndReachEachOther) {
  const auto host = WithFiveDevices();
  if (host == nullptr) GTEST_SKIP() << "the plugin is initialised already; run this test alone";
  int devices = 0;
  Require((*host)->Devices(&devices), "devices");
  ASSERT_EQ(devices, 5);
  std::set<std::string> names;
  for (int device = 0; device < devices; ++device) {
    tcpx::NicFacts facts;
    Require((*host)->Describe(device, &facts), "getProperties");
    names.insert(facts.name);
    NcclListen listen(host.get(), device);
    NcclConnect connect(host.get(), listen.handle(), (device + 3) % devices);
    void* const send = connect.Connect(Shortly());
    void* const recv = listen.Accept(Shortly());
    Require((*host)->CloseSend(send), "closeSend");
    Require((*host)->CloseReceive(recv), "closeRecv");
  }
  EXPECT_EQ(names.size(), 5U);
  for (const int wrong : {-1, devices}) {
    EXPECT_THROW(NcclListen(host.get(), wrong), std::runtime_error) << wrong;
  }
}

// In a process of its own: older versions leave the plugin initialised for good.
TEST(Devices, AreOneForAnNcclThatReadsNoneOfItsVariablesLaterAndThatIsSaid) {
  (void)::setenv("FERRY_NCCL_DEVICES", "5", /*overwrite=*/1);
  testing::AskedPeer peer = tests::Must(tests::PeerProcess::Start(testing::kOldNcclRole));
  (void)::unsetenv("FERRY_NCCL_DEVICES");
  EXPECT_EQ(peer->Ask("devices"), "1");
  peer->ExpectLogged("FERRY_NCCL_DEVICES=5 is not used: NCCL is older than 2.24");
}

TEST(Lifetime, ManyCommsAreUsedByManyThreads) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      std::vector<std::unique_ptr<CommPair>> pairs;
      for (int j = 0; j < 6; ++j) pairs.push_back(std::make_unique<CommPair>(&host, &host));
      for (std::uint64_t round = 0; round < 5; ++round) {
        for (auto& pair : pairs) {
          Exchange(*pair, 10, i);
          Exchange(*pair, 300'000, i + round);
        }
      }
      good.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 8);
}

TEST(Lifetime, EachCommIsUsedByAnotherThreadThanTheOneThatMadeIt) {
  NcclHost host(FERRY_NCCL_PLUGIN, 11);
  CommPair pair(&host, &host);
  std::thread([&] { Exchange(pair, 1 << 20, 3); }).join();
  std::thread([&] { pair.Close(); }).join();
}

TEST(Lifetime, CommsThatAreClosedWithRequestsInFlightTouchNoMemoryAfterwards) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  for (int round = 0; round < 10; ++round) {
    CommPair pair(&host, &host);
    std::vector<Bytes> from(4, PatternOf(8 << 20, 1));
    auto into = std::make_unique<std::vector<Bytes>>(8, Bytes(8 << 20));
    for (Bytes& each : *into) (void)Post(pair, false, &each);
    for (Bytes& each : from) (void)Post(pair, true, &each);
    // Something is on its way.
    void* const last = Post(pair, true, &from[0]);
    int done = 0;
    for (int i = 0; i < round; ++i) Require(host->Test(last, &done, nullptr), "test");
    if (round % 2 == 0) {
      Require(host->CloseReceive(std::exchange(pair.recv, nullptr)), "closeRecv");
      into.reset();
      pair.Close();
    } else {
      Require(host->CloseSend(std::exchange(pair.send, nullptr)), "closeSend");
      from.clear();
      pair.Close();
    }
  }
}

TEST(Lifetime, MemoryThatIsDeregisteredUnderARequestIsNotTouchedAfterwards) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  CommPair pair(&host, &host);
  Bytes from = PatternOf(8 << 20, 1);
  auto into = std::make_unique<Bytes>(8 << 20);
  void* mr = nullptr;
  Require(host->Register(pair.recv, into->data(), into->size(), abi::kPointerHost, &mr), "regMr");
  void* const receive = Post(pair, false, into.get());
  (void)Post(pair, true, &from);
  Require(host->Deregister(pair.recv, mr), "deregMr");
  into.reset();
  int done = 0;
  EXPECT_TRUE(host->Test(receive, &done, nullptr) != abi::kSuccess || done == 1);
}

TEST(Lifetime, CommsOutliveTheContextThatMadeThem) {
  std::optional<NcclHost> first(std::in_place, FERRY_NCCL_PLUGIN, 12);
  std::optional<NcclHost> second(std::in_place, FERRY_NCCL_PLUGIN, 12);
  CommPair pair(&*first, &*second);
  Exchange(pair, 100'000, 1);
  first->Finalize();
  Exchange(pair, 100'000, 2);
  second->Finalize();
  Exchange(pair, 100'000, 3);
  pair.Close();
}

TEST(Lifetime, FinalizeEndsWhatIsBeingConnected) {
  NcclHost listener(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&listener);
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclConnect connect(&host, listen.handle());
  void* send = nullptr;
  Require(connect.TryConnect(&send), "connect");
  host.Finalize();
}

TEST(Lifetime, TheEngineEndsWithItsLastUserAndBeginsAgain) {
  for (int i = 0; i < 3; ++i) {
    NcclHost host(FERRY_NCCL_PLUGIN, 12);
    CommPair pair(&host, &host);
    Exchange(pair, 70'000, static_cast<std::uint64_t>(i));
  }
}

TEST(Lifetime, WhatIsSentIsReceivedAlthoughTheSenderHasClosed) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  for (const std::size_t size : {std::size_t{9}, std::size_t{4} << 20}) {
    CommPair pair(&host, &host);
    std::vector<Bytes> from(8, PatternOf(size, 5));
    std::vector<Bytes> into(8, Bytes(size));
    std::vector<void*> sends;
    std::vector<void*> receives;
    for (std::size_t i = 0; i < 8; ++i) {
      receives.push_back(Post(pair, false, &into[i]));
      sends.push_back(Post(pair, true, &from[i]));
    }
    for (void* const send : sends) Require(WaitFor(host, send, nullptr, Shortly()), "isend");
    Require(host->CloseSend(std::exchange(pair.send, nullptr)), "closeSend");
    for (std::size_t i = 0; i < 8; ++i) {
      Require(WaitFor(host, receives[i], nullptr, Shortly()), "irecv");
      EXPECT_EQ(into[i], from[i]);
    }
  }
}

TEST(Lifetime, WhatIsSentEarlyIsReceivedLongAfterTheSenderHasClosed) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  CommPair pair(&host, &host);
  std::vector<Bytes> from(8, PatternOf(65'536, 5));
  std::vector<void*> sends;
  for (Bytes& bytes : from) sends.push_back(Post(pair, true, &bytes));
  for (void* const send : sends) Require(WaitFor(host, send, nullptr, Shortly()), "isend");
  // Whose end is heard before that of the other, by the one thread that listens.
  CommPair later(&host, &host);
  Require(host->CloseSend(std::exchange(pair.send, nullptr)), "closeSend");
  for (std::uint64_t i = 0; i < 3; ++i) Exchange(later, 9, i);
  Bytes into(65'536);
  for (const Bytes& bytes : from) {
    Require(WaitFor(host, Post(pair, false, &into), nullptr, Shortly()), "irecv");
    EXPECT_EQ(into, bytes);
  }
  EXPECT_EQ(WaitFor(host, Post(pair, false, &into), nullptr, Shortly()), abi::kRemoteError);
}

TEST(Lifetime, AReceiveWhoseSenderHasClosedFails) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  CommPair pair(&host, &host);
  Bytes into(100);
  void* const receive = Post(pair, false, &into);
  Require(host->CloseSend(std::exchange(pair.send, nullptr)), "closeSend");
  EXPECT_EQ(WaitFor(host, receive, nullptr, Shortly()), abi::kRemoteError);
}

TEST(Lifetime, ASendWhoseReceiverHasClosedFails) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  CommPair pair(&host, &host);
  Bytes from(100'000);
  void* const send = Post(pair, true, &from);
  Require(host->CloseReceive(std::exchange(pair.recv, nullptr)), "closeRecv");
  EXPECT_EQ(WaitFor(host, send, nullptr, Shortly()), abi::kRemoteError);
}

// Regression: loops gave lines to NCCL's logger themselves, and stood still where that blocked.
TEST(Lifetime, AFailureIsReportedWhileNcclsLogBlocks) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  CommPair lost(&host, &host);
  CommPair kept(&host, &host);
  Bytes into(100);
  void* const receive = Post(lost, false, &into);
  const std::size_t before = LoggedText().size();
  {
    const testing::HeldLog held;
    Require(host->CloseSend(std::exchange(lost.send, nullptr)), "closeSend");
    EXPECT_EQ(WaitFor(host, receive, nullptr, Shortly()), abi::kRemoteError);
    Exchange(kept, 300'000, 1);
    EXPECT_TRUE(testing::HeldLog::Blocks());
  }
  EXPECT_TRUE(Logged("irecv comm with", before)) << LoggedText();
}

TEST(Lifetime, AHandleThatIsNoneIsRefused) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  testing::Handle handle{};
  NcclConnect connect(&host, handle);
  void* send = nullptr;
  EXPECT_NE(connect.TryConnect(&send), abi::kSuccess);
  EXPECT_TRUE(Logged("was not made by this plugin")) << LoggedText();
}

TEST(Lifetime, AnAttemptThatIsNotIsRefused) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  testing::Handle handle = listen.handle();
  handle[120] = std::byte{77};
  NcclConnect connect(&host, handle);
  void* send = nullptr;
  EXPECT_NE(connect.TryConnect(&send), abi::kSuccess);
  EXPECT_TRUE(Logged("of attempt 77")) << LoggedText();
}

TEST(Lifetime, WhoeverHasNoKeyIsNotLetIn) {
  // It is dialled again until then, as where there is no room.
  const ScopedVariable timeout("FERRY_CONNECT_TIMEOUT", "500ms");
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  testing::Handle handle = listen.handle();
  handle[16] ^= std::byte{1};
  NcclConnect connect(&host, handle);
  void* send = nullptr;
  int outcome = abi::kSuccess;
  const Deadline deadline = Shortly();
  // The lanes come up, and are closed when they have said hello: connect() may be over by then.
  while (outcome == abi::kSuccess && send == nullptr && !deadline.expired()) {
    outcome = connect.TryConnect(&send);
  }
  if (send != nullptr) {
    Bytes from(100'000);
    void* request = nullptr;
    // And known to be closed by then, or not.
    int sent = host->Send(send, {from.data(), from.size(), 1, nullptr}, &request);
    if (sent == abi::kSuccess) sent = WaitFor(host, request, nullptr, Shortly());
    EXPECT_EQ(sent, abi::kRemoteError);
    Require(host->CloseSend(send), "closeSend");
  } else {
    EXPECT_NE(outcome, abi::kSuccess);
  }
  void* recv = nullptr;
  Require(listen.TryAccept(&recv), "accept");
  EXPECT_EQ(recv, nullptr);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a process with threads through fork()
// The first failure that a child finds, or nothing: with its parent's objects, and then with its
// own.
std::string FaultsOfChild(NcclHost& host, CommPair& pair, void* request) {
  std::string faults;
  Bytes memory(100);
  const tcpx::Message message{memory.data(), memory.size(), 1, nullptr};
  void* made = nullptr;
  int done = 0;
  if (host->Send(pair.send, message, &made) == abi::kSuccess) faults += "isend worked; ";
  if (host->Receive(pair.recv, message, &made) == abi::kSuccess) faults += "irecv worked; ";
  if (host->Test(request, &done, nullptr) == abi::kSuccess) faults += "test worked; ";
  if (host->Listen(0, memory.data(), &made) == abi::kSuccess) faults += "listen worked; ";
  if (!Logged("made before fork()")) faults += "no word of fork; ";
  pair.Close();
  host.Finalize();
  NcclHost own(FERRY_NCCL_PLUGIN, 12);
  CommPair fresh(&own, &own);
  Exchange(fresh, 100'000, 7);
  return faults;
}

TEST(Lifetime, AForkedChildLeavesTheCommsOfItsParentAloneAndMakesItsOwn) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  CommPair pair(&host, &host);
  Exchange(pair, 1'000'000, 1);
  Bytes into(1000);
  void* const receive = Post(pair, false, &into);
  const auto child = tests::Must(tests::PeerProcess::Fork([&](tests::LinePipe& parent) {
    return parent.Say(FaultsOfChild(host, pair, receive), Shortly()) ? 0 : 1;
  }));
  EXPECT_EQ(tests::Must(child->Hear(Shortly())), "");
  EXPECT_EQ(tests::Must(child->WaitExit(Shortly())), 0);
  Bytes from = PatternOf(into.size(), 3);
  void* const send = Post(pair, true, &from);
  Require(WaitFor(host, send, nullptr, Shortly()), "test of isend");
  Require(WaitFor(host, receive, nullptr, Shortly()), "test of irecv");
  EXPECT_EQ(into, from);
  Exchange(pair, 1'000'000, 2);
}
#endif

}  // namespace
}  // namespace ferry::nccl_net
