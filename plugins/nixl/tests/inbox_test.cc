// Tests how senders share the thread and the memory of a receiver.
#include "plugins/nixl/peers/inbox.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "plugins/nixl/peers/identity.h"
#include "plugins/nixl/peers/outbox.h"
#include "plugins/nixl/peers/wire.h"
#include "tests/support/peer_process.h"

namespace ferry::nixl {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using tests::Must;
using tests::MustDo;
using tests::TestDeadline;

Config Local(std::uint64_t notification_bytes = 4 << 20) {
  Config config;
  config.devices = DeviceChoice::None();
  config.workers = 1;
  config.listen_host = "127.0.0.1";
  config.notification_bytes = notification_bytes;
  return config;
}

// A receiver, and senders that say what they like.
class InboxTest : public ::testing::Test {
 protected:
  // A third is for unfinished notifications.
  static constexpr InboxLimits kTight{
      .sender_bytes = 8 << 20, .total_bytes = 24 << 20, .silence = std::chrono::hours(1)};
  static constexpr std::uint64_t kLong = 7 << 20;
  static constexpr std::uint64_t kLongPieces = (kLong + kMaxPieceBytes - 1) / kMaxPieceBytes;

  static constexpr const char* kReceiver = "receiver";
  static constexpr const char* kSecret = "of the receiver's metadata";

  static transfer::Endpoint Receiver(const Config& config) {
    return Must(transfer::Endpoint::Create(config, kSecret, CheckOfIdentities(kReceiver)));
  }
  Result<transfer::Connection> Dial(transfer::MakeIdentity identify) {
    return sender_.Connect(receiver_.address(), TestDeadline(), kSecret, std::move(identify));
  }
  transfer::Connection Sender(const std::string& agent) { return Sender(agent, key_); }
  transfer::Connection Sender(const std::string& agent, const SigningKey& key) {
    return Must(Dial(
        [&](auto transcript) { return key.Identify(agent, kReceiver, transcript).Serialize(); }));
  }
  void Receive(const InboxLimits& limits = {}) {
    inbox_ = Must(Inbox::Create(&receiver_, &tasks_, limits));
  }
  static bool IsClosed(transfer::Connection* connection) {
    const auto taken = connection->TakeNotification(TestDeadline());
    return !taken && taken.error().code() == Code::kPeerLost;
  }
  static Status Post(transfer::Connection* to, const PieceHeader& header, std::string_view bytes) {
    return Must(to->Notify(PieceFrame(header, bytes))).Wait(TestDeadline());
  }
  // Whether the inbox answers it, before the deadline.
  static Status Answered(transfer::Connection* to, std::uint64_t sequence, Deadline deadline) {
    return Must(to->Recv(sequence, ~std::uint64_t{0}, {}, {.deadline = deadline})).Wait();
  }
  // Sends whole pieces of one message, or of as many as there is room for if that is one piece, up
  // to `end`. Asks after each MiB; returns the number of the next piece where no answer comes soon.
  static std::uint64_t Fill(transfer::Connection* to, std::uint64_t total,
                            std::uint64_t sequence = 0, std::uint64_t end = ~std::uint64_t{0}) {
    const std::string full(kMaxPieceBytes, 'x');
    for (; sequence < end; ++sequence) {
      const std::uint64_t offset = total == full.size() ? 0 : sequence * full.size();
      if (offset >= total) break;
      const bool asks = sequence % 16 == 15;
      const PieceHeader header{.sequence = sequence,
                               .offset = offset,
                               .total = total,
                               .asks = asks ? std::uint64_t{1} : 0};
      if (!Post(to, header, std::string_view(full).substr(0, total - offset))) break;
      if (asks && !Answered(to, sequence, Deadline::After(milliseconds(500)))) {
        return sequence + 1;
      }
    }
    return sequence;
  }
  // The same for one long message, to its end or to `stop`, however long that takes.
  static void FillToEnd(transfer::Connection* to, std::uint64_t stop = kLongPieces) {
    const Deadline end = TestDeadline();
    for (std::uint64_t sequence = 0; sequence < stop && !end.expired();) {
      sequence = Fill(to, kLong, sequence, stop);
    }
    EXPECT_FALSE(end.expired());
  }
  abi::Notifications TakeUntil(std::string_view agent) {
    abi::Notifications taken;
    const auto is_there = [&] {
      return std::any_of(taken.begin(), taken.end(),
                         [&](const auto& entry) { return entry.first == agent; });
    };
    for (const Deadline end = TestDeadline(); !is_there() && !end.expired();) {
      inbox_->Take(&taken);
      std::this_thread::yield();
    }
    EXPECT_TRUE(is_there()) << agent;
    return taken;
  }

  Tasks tasks_;
  transfer::Endpoint receiver_ = Receiver(Local());
  const SigningKey key_ = Must(SigningKey::Random());
  transfer::Endpoint sender_ = Must(transfer::Endpoint::Create(Local()));
  std::unique_ptr<Inbox> inbox_;  // ends before the endpoints and tasks
};

TEST_F(InboxTest, ASenderOfManyNotificationsLetsAnotherHaveItsTurn) {
  auto many = Sender("many");
  for (std::uint64_t i = 0; i < 2000; ++i) MustDo(Post(&many, {.sequence = i, .total = 1}, "m"));
  auto one = Sender("one");
  MustDo(Post(&one, {.sequence = 0, .total = 1}, "o"));
  Receive();
  const auto taken = TakeUntil("one");
  const auto found = std::find_if(taken.begin(), taken.end(),
                                  [](const auto& entry) { return entry.first == "one"; });
  EXPECT_LT(found - taken.begin(), 500);
}

TEST_F(InboxTest, ASenderThatHasFilledItsShareDoesNotKeepAnotherOut) {
  Receive();
  auto many = Sender("many");
  (void)Fill(&many, kMaxPieceBytes);
  auto one = Sender("one");
  MustDo(Post(&one, {.sequence = 0, .total = 1, .asks = 1}, "o"));
  EXPECT_TRUE(Answered(&one, 0, TestDeadline()));
  abi::Notifications taken;
  inbox_->Take(&taken);
  EXPECT_THAT(taken, ::testing::Contains(std::pair(std::string("one"), std::string("o"))));
}

TEST_F(InboxTest, ALongNotificationMayExceedItsSendersShare) {
  Receive({.total_bytes = 3 << 20});
  for (const char* const name : {"one", "two"}) {
    auto sender = Sender(name);
    FillToEnd(&sender);
    EXPECT_EQ(TakeUntil(name).back().second.size(), kLong);
  }
}

TEST_F(InboxTest, SendersThatStopInLongNotificationsKeepNoOtherFromItsOwn) {
  Receive(kTight);
  std::vector<transfer::Connection> stopped;
  for (int i = 0; i < 4; ++i) {
    stopped.push_back(Sender(fmt::format("stopped {}", i)));
    FillToEnd(&stopped.back(), kLongPieces - 16);
  }
  auto one = Sender("one");
  FillToEnd(&one);
  EXPECT_EQ(TakeUntil("one").back().second.size(), kLong);
  // The memory would not do for two of them.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsClosed(&stopped[static_cast<std::size_t>(i)])) << i;
}

TEST_F(InboxTest, SendersThatStopWithinTheirSharesHoldNoMoreThanAllTogetherMay) {
  Receive(kTight);
  std::vector<transfer::Connection> stopped;
  for (std::uint64_t i = 1; i <= 30; ++i) {
    stopped.push_back(Sender(fmt::format("stopped {}", i)));
    const std::uint64_t share = kTight.total_bytes / 3 / i;  // of so many
    FillToEnd(&stopped.back(), std::min(share / kMaxPieceBytes - 1, kLongPieces - 16));
  }
  EXPECT_TRUE(IsClosed(&stopped.front()));
}

TEST_F(InboxTest, ShortNotificationsCountWithTheListThatTheyAreIn) {
  Receive({.sender_bytes = 1 << 20});
  auto one = Sender("one");
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const bool asks = i % 16 == 15;
    const PieceHeader header{
        .sequence = i, .total = 1, .asks = asks ? std::uint64_t{1} : std::uint64_t{0}};
    MustDo(Post(&one, header, "x"));
    // The share has room for some 4000.
    const Deadline deadline = i < 2000 ? TestDeadline() : Deadline::After(milliseconds(500));
    if (asks && !Answered(&one, i, deadline)) break;
  }
  abi::Notifications taken;
  inbox_->Take(&taken);
  EXPECT_GT(taken.size(), 1000U);
  EXPECT_LT(4 * taken.size() * sizeof(taken.front()), 2U << 20);
}

TEST_F(InboxTest, SendersThatComeAgainFillNoMoreThanAllTogetherMay) {
  Receive(kTight);
  for (int i = 0; i < 8; ++i) {
    auto one = Sender("one");
    (void)Fill(&one, kMaxPieceBytes, 0, 96);  // 6 MiB
    one.Close();
  }
  abi::Notifications taken;
  inbox_->Take(&taken);
  std::uint64_t bytes = 0;
  for (const auto& [agent, text] : taken) bytes += text.size();
  EXPECT_LE(bytes, kTight.total_bytes + kMaxPieceBytes);
  // What waited arrives then.
  auto two = Sender("two");
  MustDo(Post(&two, {.total = 1}, "t"));
  (void)TakeUntil("two");
}

TEST_F(InboxTest, ASenderThatStopsInANotificationIsClosed) {
  Receive({.silence = milliseconds(300)});
  auto one = Sender("one");
  MustDo(Post(&one, {.total = kMaxPieceBytes + 1}, std::string(kMaxPieceBytes, 'x')));
  EXPECT_TRUE(IsClosed(&one));
}

TEST_F(InboxTest, ANotificationThatNoRoomCouldBeMadeForIsRefused) {
  Receive({.sender_bytes = 1 << 20});
  auto one = Sender("one");
  MustDo(Post(&one, {.total = (1 << 20) + 1}, std::string(kMaxPieceBytes, 'x')));
  EXPECT_TRUE(IsClosed(&one));
}

TEST_F(InboxTest, PeersWithMalformedIdentitiesFillNoLog) {
  constexpr int kPeers = 60;
  const auto begun = Clock::now();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < kPeers; ++i) {
    EXPECT_FALSE(Dial([](auto /*transcript*/) { return std::vector<std::byte>(9); }));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto lines = std::count(log.begin(), log.end(), '\n');
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 10 * (2 + static_cast<int>(Seconds(Clock::now() - begun)))) << log;
}

TEST_F(InboxTest, AnAgentsNameForgesNoLine) {
  Receive();
  ::testing::internal::CaptureStderr();
  auto forger = Sender("x\nE0101 00:00:00.000000 1 secret.cc:1] \x1b[31mforged");
  (void)forger.Notify(std::vector<std::byte>(9));
  (void)forger.TakeNotification(TestDeadline());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::HasSubstr("x\\x0aE0101"));
  EXPECT_THAT(log, ::testing::Not(::testing::HasSubstr("\nE0101 00")));
  EXPECT_THAT(log, ::testing::Not(::testing::HasSubstr("\x1b")));
}

TEST_F(InboxTest, AnIdentityThatIsNotSignedForThisHandshakeIsRefused) {
  const auto another = Must(SigningKey::Random());
  Identity recorded;
  const auto former = Must(Dial([&](auto transcript) {
    recorded = key_.Identify("one", kReceiver, transcript);
    return recorded.Serialize();
  }));
  using Bytes = std::span<const std::byte>;
  const auto say = [&](const std::function<Identity(Bytes)>& identify) {
    const auto refused = Dial([&](Bytes transcript) { return identify(transcript).Serialize(); });
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kRefused);
    EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("is not proved to be"));
  };
  say([&](Bytes) { return recorded; });
  say([&](Bytes transcript) { return key_.Identify("one", "another", transcript); });
  say([&](Bytes transcript) {
    Identity identity = key_.Identify("one", kReceiver, transcript);
    identity.agent = "two";
    return identity;
  });
  say([&](Bytes transcript) {
    Identity identity = key_.Identify("one", kReceiver, transcript);
    identity.key = another.public_key();
    return identity;
  });
  EXPECT_FALSE(Dial(nullptr));
  EXPECT_EQ(receiver_.Counters().handshakes_refused, 5U);
  EXPECT_FALSE(former.lost());
}

TEST_F(InboxTest, ANameIsOfTheFirstThatClaimsItUntilThatHasGone) {
  Receive({.claim = std::chrono::hours(1)});
  const auto another = Must(SigningKey::Random());
  auto first = Sender("one");
  MustDo(Post(&first, {.total = 1}, "a"));
  EXPECT_THAT(TakeUntil("one"), ElementsAre(Pair("one", "a")));
  auto other = Sender("one", another);
  MustDo(Post(&other, {.total = 1}, "b"));
  auto second = Sender("one");
  MustDo(Post(&second, {.total = 1}, "c"));
  EXPECT_THAT(TakeUntil("one"), ElementsAre(Pair("one", "c")));
  first.Close();
  second.Close();
  EXPECT_THAT(TakeUntil("one"), ElementsAre(Pair("one", "b")));
}

TEST_F(InboxTest, ANameOfLoadedMetadataBelongsToItsKey) {
  Receive({.claim = std::chrono::hours(1)});
  const auto another = Must(SigningKey::Random());
  auto early = Sender("one", another);
  MustDo(Post(&early, {.total = 1}, "a"));
  EXPECT_THAT(TakeUntil("one"), ElementsAre(Pair("one", "a")));
  inbox_->BindName("one", key_.public_key());
  EXPECT_TRUE(IsClosed(&early));
  auto late = Sender("one", another);
  MustDo(Post(&late, {.total = 1}, "b"));
  auto one = Sender("one");
  MustDo(Post(&one, {.total = 1}, "c"));
  EXPECT_THAT(TakeUntil("one"), ElementsAre(Pair("one", "c")));
  // The metadata is replaced, as after a restart of the agent.
  inbox_->BindName("one", another.public_key());
  EXPECT_THAT(TakeUntil("one"), ElementsAre(Pair("one", "b")));
  EXPECT_TRUE(IsClosed(&one));
}

TEST_F(InboxTest, WhoClaimsTheNameOfAnotherIsClosedAfterAWhile) {
  Receive({.claim = milliseconds(300)});
  inbox_->BindName("one", key_.public_key());
  auto other = Sender("one", Must(SigningKey::Random()));
  EXPECT_TRUE(IsClosed(&other));
  EXPECT_EQ(inbox_->refused(), 1U);
}

TEST_F(InboxTest, PiecesThatComeAgainAreTakenOnce) {
  Receive();
  auto one = Sender("one");
  for (const std::uint64_t sequence : {0U, 2U, 3U, 0U, 1U, 3U, 2U, 3U, 4U}) {
    MustDo(Post(&one, {.sequence = sequence, .total = 1}, std::to_string(sequence)));
  }
  abi::Notifications taken;
  for (const Deadline end = TestDeadline(); taken.size() < 5 && !end.expired();) {
    inbox_->Take(&taken);
  }
  ASSERT_EQ(taken.size(), 5U);
  for (std::size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(taken[i].second, std::to_string(i));
}

// An outbox whose peer has room for so many bytes and takes none of them at first.
class OutboxTest : public InboxTest {
 protected:
  static constexpr std::size_t kCount = 2000;

  void SendAll(std::uint64_t room, std::uint64_t posted_at_first) {
    receiver_ = Receiver(Local(room));
    const auto courier = Must(Courier::Create());
    auto connection = Sender("one");
    const auto outbox = std::make_shared<Outbox>("receiver", courier.get());  // with the courier
    for (std::size_t i = 0; i < kCount; ++i) {
      outbox->Add(std::string(40'000, static_cast<char>(i % 251)), nullptr);
    }
    outbox->Start(connection);
    const auto posted = [&] {
      return connection.Counters().traffic.of(transfer::OperationKind::kNotify).begun;
    };
    const Deadline end = TestDeadline();
    while (posted() < posted_at_first && !end.expired()) std::this_thread::yield();
    Receive();
    abi::Notifications taken;
    while (taken.size() < kCount && !end.expired()) inbox_->Take(&taken);
    ASSERT_EQ(taken.size(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(taken[i].second.front(), static_cast<char>(i % 251)) << i;
    }
    posted_ = posted();
    courier->WaitIdle(TestDeadline());
  }

  std::uint64_t posted_ = 0;
};

TEST_F(OutboxTest, APeerThatTakesNothingIsSentAWindowAndNothingTwice) {
  SendAll(5 << 18, 26);
  EXPECT_EQ(posted_, kCount);
}

// Regression: where no receive could be posted for the answer, the piece asked for it all the same,
// and the answer was kept as a message that nobody receives.
TEST_F(OutboxTest, APieceThatAsksIsSentOnceItsAnswerIsReceived) {
  Config config = Local();
  config.max_operations = 2;
  sender_ = Must(transfer::Endpoint::Create(config));
  Receive();
  auto connection = Sender("one");
  auto other = Must(connection.Recv(~std::uint64_t{0}, ~std::uint64_t{0}, {}));
  const auto courier = Must(Courier::Create());
  const auto outbox = std::make_shared<Outbox>("receiver", courier.get());  // with the courier
  outbox->Add(std::string(kMaxPieceBytes, 'x'), nullptr);
  outbox->Start(connection);
  other.Cancel();
  (void)TakeUntil("one");
  courier->WaitIdle(TestDeadline());
  EXPECT_FALSE(Answered(&connection, 0, Deadline::After(milliseconds(500))));
}

TEST_F(OutboxTest, APeerThatRefusesGetsAllInOrderAndLittleTwice) {
  SendAll(128 << 10, 29);
  EXPECT_GT(posted_, kCount);
  EXPECT_LT(posted_, kCount + 500);
}

}  // namespace
}  // namespace ferry::nixl
