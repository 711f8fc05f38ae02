// Tests of TLS streams: bytes, errors and key updates.
#include "ferry/net/tcp/tls/stream.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/net/testing/lane_end.h"

namespace ferry::net::tcp {
namespace {

using ::testing::HasSubstr;
using Role = TlsStream::Role;

Config ByKey() {
  Config config;
  config.tls = TlsMode::kPsk;
  config.secret = "sixteen letters!";
  return config;
}

std::vector<iovec> Pieces(std::vector<std::byte>& bytes, std::size_t piece) {
  std::vector<iovec> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    pieces.push_back({bytes.data() + at, std::min(piece, bytes.size() - at)});
  }
  return pieces;
}

// Two streams over a pair of sockets, after the handshake; a test can tamper with `wire`.
class TlsStreamTest : public ::testing::Test {
 protected:
  void Open(std::uint64_t records_per_key = TlsStream::kRecordsPerKey) {
    std::array<int, 2> ends{};
    FERRY_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    near_.reset();
    far_.reset();
    near_fd_ = UniqueFd(ends[0]);
    far_fd_ = UniqueFd(ends[1]);
    const auto context = *TlsContext::Create(ByKey());
    near_ = *TlsStream::Create(context, ends[0], Role::kConnects, "far", records_per_key);
    far_ = *TlsStream::Create(context, ends[1], Role::kAccepts, "near", records_per_key);
    int done = 0;
    for (int i = 0; i < 10 && done != 2; ++i) {
      done = 0;
      for (auto* stream : {near_.get(), far_.get()}) {
        const auto progress = stream->Handshake();
        ASSERT_TRUE(progress) << progress.error().ToString();
        if (*progress == TlsStream::Progress::kDone) ++done;
      }
    }
    ASSERT_EQ(done, 2);
  }
  // Moves all of `from`, piece by piece, into all of `to`.
  void Move(std::vector<iovec> from, std::vector<iovec> to) {
    IoCursor out(from);
    IoCursor in(to);
    for (int idle = 0; !in.at_end() && idle < 3;) {
      const bool wrote = Write(&out);
      const bool read = Read(&in);
      idle = wrote || read ? 0 : idle + 1;
    }
    EXPECT_TRUE(out.at_end() && in.at_end());
  }
  bool Write(IoCursor* out) {
    std::array<iovec, 16> pieces;
    std::size_t used = 0;
    (void)out->Collect(pieces, &used, 1 << 20);
    if (used == 0) return false;
    const ssize_t sent = near_->Writev({pieces.data(), used});
    if (sent > 0) out->Advance(static_cast<std::size_t>(sent));
    return sent > 0;
  }
  bool Read(IoCursor* in) {
    std::array<iovec, 16> pieces;
    std::size_t used = 0;
    const std::size_t asked = in->Collect(pieces, &used, 1 << 20);
    const ssize_t got = far_->Readv({pieces.data(), used}, asked);
    if (got < 0) {
      EXPECT_EQ(errno, EAGAIN);
      EXPECT_TRUE(far_->drained());
    }
    // Input that epoll will not report must have been read.
    EXPECT_TRUE(!far_->drained() || got < static_cast<ssize_t>(asked));
    if (got > 0) in->Advance(static_cast<std::size_t>(got));
    return got > 0;
  }
  ssize_t ReadSome(std::size_t bytes) {
    std::vector<std::byte> memory(bytes);
    const iovec piece{memory.data(), bytes};
    return far_->Readv({&piece, 1}, bytes);
  }
  ssize_t Say(std::string_view text) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    return near_->Writev({&piece, 1});
  }

  // Opens `far_` against OpenSSL's own client.
  UniqueHandle<SslTraits> OpenRaw() {
    std::array<int, 2> ends{};
    FERRY_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    near_fd_ = UniqueFd(ends[0]);
    far_fd_ = UniqueFd(ends[1]);
    context_ = *TlsContext::Create(ByKey());
    far_ = *TlsStream::Create(context_, ends[1], Role::kAccepts, "near");
    UniqueHandle<SslTraits> ssl(::SSL_new(context_->get()));
    FERRY_CHECK(::SSL_set_fd(ssl.get(), ends[0]) == 1);
    for (int i = 0; i < 10; ++i) {
      (void)::SSL_connect(ssl.get());
      const auto progress = far_->Handshake();
      FERRY_CHECK(progress.has_value());
      if (*progress == TlsStream::Progress::kDone) return ssl;
    }
    FERRY_CHECK(false);
    return ssl;
  }
  // After how many updates of its keys without data `far_` gives up on a peer; 0: never.
  int GivesUpOnNewKeys(int how) {
    const UniqueHandle<SslTraits> ssl = OpenRaw();
    for (int i = 1; i <= 10'000; ++i) {
      (void)::SSL_key_update(ssl.get(), how);
      (void)::SSL_do_handshake(ssl.get());
      if (ReadSome(100) < 0 && errno != EAGAIN) return i;
    }
    return 0;
  }

  std::shared_ptr<const TlsContext> context_;
  UniqueFd near_fd_;
  UniqueFd far_fd_;
  std::unique_ptr<TlsStream> near_;
  std::unique_ptr<TlsStream> far_;
};

TEST_F(TlsStreamTest, ScatteredBytesArriveWholeInOtherPieces) {
  Open();
  auto sent = RandomBytes(3'000'000, 1);
  for (const std::size_t from : {7'000UL, 16'384UL, 50'000UL, 3'000'000UL}) {
    for (const std::size_t to : {5'000UL, 16'384UL, 70'000UL, 3'000'000UL}) {
      std::vector<std::byte> received(sent.size());
      Move(Pieces(sent, from), Pieces(received, to));
      EXPECT_TRUE(sent == received) << from << " to " << to;
    }
  }
}

TEST_F(TlsStreamTest, NewKeysComeWithoutAGap) {
  Open(/*records_per_key=*/3);
  auto sent = RandomBytes(1'000'000, 2);
  std::vector<std::byte> received(sent.size());
  Move(Pieces(sent, 9'999), Pieces(received, 4'321));
  EXPECT_TRUE(sent == received);
}

TEST_F(TlsStreamTest, NothingOnTheWireIsInTheClear) {
  Open();
  const std::string text = "nobody else is to read this, nobody at all";
  ASSERT_EQ(Say(text), static_cast<ssize_t>(text.size()));
  std::string wire(4096, '\0');
  const ssize_t got = ::recv(far_fd_.get(), wire.data(), wire.size(), MSG_PEEK);
  ASSERT_GT(got, static_cast<ssize_t>(text.size()));
  EXPECT_EQ(wire.find(text.substr(0, 8)), std::string::npos);
}

TEST_F(TlsStreamTest, AChangedBitIsFoundBeforeAnyByteOfItsRecordIsPlaced) {
  for (const std::size_t at : {5U, 30U, 60U}) {
    Open();
    ASSERT_EQ(Say("forty bytes that somebody will change ..."), 41);
    std::array<std::byte, 256> wire{};
    const ssize_t bytes = ::read(far_fd_.get(), wire.data(), wire.size());
    ASSERT_GT(bytes, 60);
    wire[at] ^= std::byte{1};
    ASSERT_EQ(::write(near_fd_.get(), wire.data(), static_cast<std::size_t>(bytes)), bytes);
    std::vector<std::byte> memory(100, std::byte{7});
    const iovec piece{memory.data(), memory.size()};
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(far_->Readv({&piece, 1}, memory.size()), -1);
      EXPECT_EQ(errno, EPROTO);
    }
    ASSERT_NE(far_->failure(), nullptr);
    EXPECT_EQ(far_->failure()->code, Code::kCorrupt);
    EXPECT_THAT(far_->failure()->text, HasSubstr("changed on the way"));
    EXPECT_TRUE(memory == std::vector<std::byte>(100, std::byte{7}));
    EXPECT_EQ(far_->Writev({&piece, 1}), -1);
  }
}

TEST_F(TlsStreamTest, AnEndThatWasSaidIsToldFromACut) {
  Open();
  ASSERT_EQ(Say("last"), 4);
  near_->SayEnd();
  near_fd_.reset();
  EXPECT_EQ(ReadSome(100), 4);
  EXPECT_EQ(ReadSome(100), 0);
  EXPECT_EQ(far_->failure(), nullptr);

  Open();
  ASSERT_EQ(Say("last"), 4);
  near_fd_.reset();
  EXPECT_EQ(ReadSome(100), 4);
  EXPECT_EQ(ReadSome(100), -1);
  EXPECT_EQ(errno, EPROTO);
  ASSERT_NE(far_->failure(), nullptr);
  EXPECT_EQ(far_->failure()->code, Code::kPeerLost);
  EXPECT_THAT(far_->failure()->text, HasSubstr("without the end of the TLS stream"));
}

TEST_F(TlsStreamTest, ARecordReadInPartIsHeld) {
  Open();
  ASSERT_EQ(Say("0123456789"), 10);
  EXPECT_EQ(ReadSome(4), 4);
  EXPECT_TRUE(far_->HoldsInput());
  EXPECT_FALSE(far_->drained());
  EXPECT_EQ(far_->Discard(100), 6);
  EXPECT_FALSE(far_->HoldsInput());
  EXPECT_TRUE(far_->drained());
  EXPECT_EQ(ReadSome(4), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(TlsStreamTest, AWriteThatFindsNoRoomIsFinishedLater) {
  Open();
  auto sent = RandomBytes(4'000'000, 3);
  const auto pieces = Pieces(sent, sent.size());
  IoCursor out(pieces);
  while (Write(&out)) {
  }
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_FALSE(out.at_end());
  std::vector<std::byte> received(sent.size());
  const auto places = Pieces(received, 100'000);
  IoCursor in(places);
  for (bool moved = true; moved && !in.at_end();) {
    moved = Read(&in);
    moved = Write(&out) || moved;
  }
  EXPECT_TRUE(sent == received);
}

TEST_F(TlsStreamTest, TellsHowItIsSecured) {
  Open();
  LaneInfo info;
  near_->Describe(&info);
  EXPECT_TRUE(info.authenticated);
  EXPECT_EQ(info.security, "TLSv1.3 TLS_AES_128_GCM_SHA256, pre-shared key");
}

TEST_F(TlsStreamTest, BothEndsTellTheSameOfTheirConnectionAndNoOther) {
  const auto bindings = [this] {
    LaneInfo near;
    LaneInfo far;
    near_->Describe(&near);
    far_->Describe(&far);
    return std::pair(near.channel_binding, far.channel_binding);
  };
  Open();
  const auto first = bindings();
  EXPECT_EQ(first.first, first.second);
  EXPECT_NE(first.first, ChannelBinding{});
  Open();
  EXPECT_NE(bindings().first, first.first);
}

TEST_F(TlsStreamTest, APeerThatChangesKeysAgainAndAgainWithoutDataIsGivenUp) {
  for (const int how : {SSL_KEY_UPDATE_REQUESTED, SSL_KEY_UPDATE_NOT_REQUESTED}) {
    const int updates = GivesUpOnNewKeys(how);
    EXPECT_GT(updates, 10);
    EXPECT_LT(updates, 200);
    ASSERT_NE(far_->failure(), nullptr);
    EXPECT_EQ(far_->failure()->code, Code::kCorrupt);
    EXPECT_THAT(far_->failure()->text, HasSubstr("new keys"));
  }
}

// Regression: all updates that the socket held were read in one call.
TEST_F(TlsStreamTest, AFloodOfNewKeysIsNotReadToItsEnd) {
  const UniqueHandle<SslTraits> ssl = OpenRaw();
  const int room = 4 << 20;
  (void)::setsockopt(near_fd_.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  int sent = 0;
  for (; sent < 20'000; ++sent) {
    (void)::SSL_key_update(ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    if (::SSL_do_handshake(ssl.get()) != 1) break;
  }
  ASSERT_GT(sent, 100);
  EXPECT_EQ(ReadSome(100), -1);
  EXPECT_EQ(errno, EPROTO);
  EXPECT_THAT(far_->failure()->text, HasSubstr("(65 for 65 records)"));
}

TEST_F(TlsStreamTest, KeysMayChangeAsOftenAsDataComes) {
  const UniqueHandle<SslTraits> ssl = OpenRaw();
  std::size_t written = 0;
  for (int i = 1; i < 60'000; ++i) {
    if (i % 300 == 0) {
      (void)::SSL_key_update(ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    ASSERT_EQ(::SSL_write_ex(ssl.get(), "x", 1, &written), 1);
    ASSERT_EQ(ReadSome(100), 1);
  }
}

TEST_F(TlsStreamTest, AFloodOfTicketsFromTheAcceptingSideIsGivenUp) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  near_fd_ = UniqueFd(ends[0]);
  far_fd_ = UniqueFd(ends[1]);
  context_ = *TlsContext::Create(ByKey());
  far_ = *TlsStream::Create(context_, ends[1], Role::kConnects, "near");
  const UniqueHandle<SslTraits> ssl(::SSL_new(context_->get()));
  ASSERT_EQ(::SSL_set_fd(ssl.get(), ends[0]), 1);
  auto progress = far_->Handshake();
  for (int i = 0; i < 10 && progress && *progress == TlsStream::Progress::kWaiting; ++i) {
    (void)::SSL_accept(ssl.get());
    progress = far_->Handshake();
  }
  ASSERT_TRUE(progress && *progress == TlsStream::Progress::kDone);
  ASSERT_EQ(::SSL_accept(ssl.get()), 1);
  (void)::SSL_clear_options(ssl.get(), SSL_OP_NO_TICKET);
  bool given_up = false;
  for (int i = 0; i < 1000 && !given_up; ++i) {
    ASSERT_EQ(::SSL_new_session_ticket(ssl.get()), 1);
    ASSERT_EQ(::SSL_do_handshake(ssl.get()), 1);
    given_up = ReadSome(100) < 0 && errno == EPROTO;
  }
  EXPECT_TRUE(given_up);
}

// A lane's turn would last for seconds otherwise: a short record takes as long as a long one.
TEST_F(TlsStreamTest, AShortRecordCountsAsMuchWorkAsALongOne) {
  const UniqueHandle<SslTraits> ssl = OpenRaw();
  std::size_t written = 0;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(::SSL_write_ex(ssl.get(), "x", 1, &written), 1);
  EXPECT_EQ(ReadSome(1000), 100);
  EXPECT_EQ(far_->TakeWork(), 100U * SSL3_RT_MAX_PLAIN_LENGTH);
  EXPECT_EQ(far_->TakeWork(), 0U);
}

}  // namespace
}  // namespace ferry::net::tcp
