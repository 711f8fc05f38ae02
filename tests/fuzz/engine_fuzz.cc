// Fuzzes the engine with a peer that completes the handshake and then sends anything, in any
// order, cut anywhere, while this side registers memory and reads, writes, sends, receives,
// cancels and deregisters. Each buffer is a separate allocation that is freed as soon as the
// engine reports that it no longer uses it, so AddressSanitizer detects any access beyond or after
// that. At the end every operation has ended and nothing remains of the connection.

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "ferry/core/check.h"
#include "tests/fuzz/engine_host.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/scripted_lane.h"

namespace ferry::fuzz {
namespace {

using namespace transfer;  // NOLINT(google-build-using-namespace): a test of all of it
using wire::Type;

constexpr std::size_t kMaxMemories = 8;
constexpr std::size_t kMaxOperations = 24;
constexpr std::size_t kMaxHeard = 32;
constexpr int kMaxSteps = 400;
constexpr std::byte kFill{0xC3};
constexpr Type kSayings[] = {
    Type::kWrite,   Type::kReadRequest, Type::kReadData, Type::kReadRefused, Type::kSend,
    Type::kRts,     Type::kCts,         Type::kFin,      Type::kNotify,      Type::kDeclined,
    Type::kAck,     Type::kNack,        Type::kPing,     Type::kPong,        Type::kHello,
    Type::kWelcome, Type::kResume,      Type::kLaneLost,
};

Deadline Now() { return Deadline::At(Clock::now()); }

class Session {
 public:
  explicit Session(Script* script)
      : script_(script),
        host_((script->U8() & 1) != 0 ? Host::ShortTimeout() : Host::WithLongTimeouts()),
        loop_(host_.provider->loop()) {
    for (std::uint16_t i = 0; i < kLanes; ++i) SendHello(i);
    auto accepted = host_.endpoint->Accept(Deadline::After(std::chrono::seconds(5)));
    FERRY_CHECK(accepted.has_value());
    connection_ = *std::move(accepted);
  }

  void Run() {
    for (int steps = 0; steps < kMaxSteps && !script_->empty(); ++steps) {
      Step();
      Reap();
    }
    Finish();
  }

 private:
  // ---- the handshake

  void SendHello(std::uint16_t index) {
    PeerLane& lane = lanes_[index];
    RunOnLoop(loop_, [&] {
      lane.end = host_.provider->ConnectLane();
      lane.end->on_place = [this](auto pieces) { CheckPlaced(pieces); };
      lane.end->on_read = [this](auto pieces) { CheckRead(pieces); };
      wire::MessageHeader header;
      std::vector<std::byte> meta;
      if (index == 0) {
        wire::HelloBody hello;
        hello.lanes = kLanes;
        hello.window_bytes = 64 << 10;
        std::memcpy(hello.endpoint, peer_.bytes.data(), sizeof hello.endpoint);
        header.type = Type::kHello;
        wire::Append(&meta, header);
        wire::Append(&meta, hello);
      } else {
        wire::JoinBody join;
        join.lane = index;
        join.connection = welcome_.connection;
        std::memcpy(join.token, welcome_.token, sizeof join.token);
        header.type = Type::kJoin;
        wire::Append(&meta, header);
        wire::Append(&meta, join);
      }
      lane.end->Say(std::move(meta), 0);
      lane.end->Deliver(0);
      WireFrame answer;
      FERRY_CHECK(lane.end->Read(&answer));
      wire::MetaReader reader(answer.meta);
      FERRY_CHECK(reader.Read(&header));
      if (index == 0) FERRY_CHECK(header.type == Type::kWelcome && reader.Read(&welcome_));
    });
  }

  // Puts a new lane in the place of one, lost or not; what was heard of the old one's frames is
  // told as it is, or wrongly.
  void Rejoin(std::uint16_t index) {
    PeerLane& lane = lanes_[index];
    auto end = std::shared_ptr<PeerEnd>();  // with the lane
    const std::uint8_t how = script_->U8();
    RunOnLoop(loop_, [&] {
      end = host_.provider->ConnectLane();
      end->on_place = [this](auto pieces) { CheckPlaced(pieces); };
      end->on_read = [this](auto pieces) { CheckRead(pieces); };
      wire::RejoinBody rejoin;
      rejoin.lane = index;
      rejoin.connection = welcome_.connection;
      rejoin.attempt = (how & 1) != 0 ? script_->U8() : ++attempts_;
      std::memcpy(rejoin.token, welcome_.token, sizeof rejoin.token);
      SayFirst(end.get(), Type::kRejoin, std::as_bytes(std::span(&rejoin, 1)));
      wire::ResumeBody resume;
      resume.finished = lane.sequenced + ((how & 2) != 0 ? script_->U8() - 128U : 0);
      resume.refusals = (how & 4) != 0 ? script_->U8() % 4U : 0;
      std::vector<std::byte> body;
      wire::Append(&body, resume);
      for (std::uint32_t i = 0; i < resume.refusals; ++i) {
        wire::Append(
            &body, wire::RefusalOnWire{resume.finished - script_->U8() % 8U, script_->U8() % 16U});
      }
      SayFirst(end.get(), Type::kResume, body);
    });
    Settle(loop_);
    RunOnLoop(loop_, [&] {
      bool resumed = false;
      for (WireFrame answer; !resumed && end->Read(&answer);) {
        wire::MetaReader reader(answer.meta);
        wire::MessageHeader header;
        FERRY_CHECK(reader.Read(&header));
        resumed = header.type == Type::kResumed;
      }
      if (!resumed) return end->HangUp();
      lane.end = std::move(end);
    });
    Settle(loop_);
  }

  static void SayFirst(PeerEnd* end, Type type, std::span<const std::byte> body) {
    wire::MessageHeader header;
    header.type = type;
    std::vector<std::byte> meta;
    wire::Append(&meta, header);
    meta.insert(meta.end(), body.begin(), body.end());
    end->Say(std::move(meta), 0);
    end->Deliver(0);
  }

  // ---- what must hold

  Memory* Holding(const iovec& piece) {
    const auto* const at = static_cast<const std::byte*>(piece.iov_base);
    for (auto& memory : memories_) {
      if (at >= memory->bytes.get() && at < memory->bytes.get() + memory->size) {
        FERRY_CHECK(at + piece.iov_len <= memory->bytes.get() + memory->size, piece.iov_len);
        return memory.get();
      }
    }
    return nullptr;
  }
  void CheckPlaced(std::span<const iovec> pieces) {
    for (const iovec& piece : pieces) {
      const Memory* const memory = Holding(piece);
      if (memory == nullptr || memory->read_into) continue;
      FERRY_CHECK(Includes(memory->region->remote().rights, Rights::kWrite) && !memory->revoked);
    }
  }
  // Only the bounds of the peer's reads are checked: our own writes send from any region.
  void CheckRead(std::span<const iovec> pieces) {
    for (const iovec& piece : pieces) (void)Holding(piece);
  }

  bool Untouched(const Memory& memory) const {
    if (memory.read_into || Includes(memory.region->remote().rights, Rights::kWrite)) return true;
    return std::all_of(memory.bytes.get(), memory.bytes.get() + memory.size,
                       [](std::byte b) { return b == kFill; });
  }

  // Frees what the engine has said that it is done with.
  void Reap() {
    for (auto it = running_.begin(); it != running_.end();) {
      it = it->operation.Poll() ? running_.erase(it) : it + 1;
    }
  }
  bool TryDeregister(Memory* memory, Deadline deadline) {
    memory->revoked = true;
    if (!memory->region->Deregister(deadline)) return false;
    FERRY_CHECK(Untouched(*memory));
    return true;
  }

  void Finish() {
    connection_->Close();
    Reap();
    FERRY_CHECK(running_.empty(), running_.size());
    for (auto& memory : memories_) {
      FERRY_CHECK(TryDeregister(memory.get(), Deadline::After(std::chrono::seconds(5))));
    }
    memories_.clear();
    connection_.reset();
    for (int turns = 0; ScriptedLane::count() > 0; ++turns) {
      FERRY_CHECK(turns < 1000, ScriptedLane::count());
      Settle(loop_, 1);
    }
  }

  // ---- the script

  void Step() {
    switch (script_->Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3: return Say();
      case 4:
      case 5: return OnLane([this](PeerLane* lane) { Answer(lane); });
      case 6: return OnLane([this](PeerLane* lane) { (void)Hear(lane); });
      case 7: return OnLane([n = script_->U16()](PeerLane* lane) { lane->end->Deliver(n); });
      case 8: return Register();
      case 9:
      case 10: return Access();
      case 11: return Message();
      case 12: return End();
      case 13: return Rest();
      case 14: return Repeat();
      default: return Settle(loop_, 1 + static_cast<int>(script_->Below(4)));
    }
  }

  void OnLane(const std::function<void(PeerLane*)>& what) {
    PeerLane& lane = lanes_[script_->Below(kLanes)];
    RunOnLoop(loop_, [&] { what(&lane); });
  }

  void Rest() {
    switch (script_->Below(7)) {
      case 0: (void)connection_->TakeNotification(Now()); return;
      case 1: return OnLane([](PeerLane* lane) { lane->end->HangUp(); });
      case 2:
        if (script_->Below(4) == 0) connection_->Close();
        return;
      case 3: return OnLane([](PeerLane* lane) { lane->end->HangUp(net::LaneLoss::kReset); });
      case 4: return Rejoin(static_cast<std::uint16_t>(script_->Below(kLanes)));
      case 5: return OnLane([](PeerLane* lane) { lane->end->HangUp(net::LaneLoss::kUnreachable); });
      default: (void)connection_->Info();
    }
  }

  // ---- the peer

  std::optional<Heard> Hear(PeerLane* lane) {
    WireFrame frame;
    if (!lane->end->Read(&frame)) return std::nullopt;
    Heard heard;
    wire::MetaReader reader(frame.meta);
    FERRY_CHECK(reader.Read(&heard.header));
    heard.body.assign(reader.rest().begin(), reader.rest().end());
    if (IsSequenced(heard.header.type)) heard.sequence = lane->sequenced++;
    heard_.push_back(heard);
    if (heard_.size() > kMaxHeard) heard_.pop_front();
    return heard;
  }

  // All of the frame is heard but for, perhaps, the second half of its payload.
  void Tell(PeerLane* lane, Type type, std::uint64_t operation, std::span<const std::byte> body,
            std::uint64_t payload_bytes = 0) {
    wire::MessageHeader header;
    header.type = type;
    header.ack = lane->sequenced;
    header.operation = operation;
    std::vector<std::byte> meta;
    wire::Append(&meta, header);
    meta.insert(meta.end(), body.begin(), body.end());
    lane->end->Say(std::move(meta), payload_bytes);
    lane->end->Deliver(halves_ ? payload_bytes / 2 : payload_bytes);
  }

  // A refusal of the frame, and then the count that covers it.
  void Refuse(PeerLane* lane, const Heard& heard, std::uint8_t code) {
    const bool read = heard.header.type == Type::kReadRequest;
    wire::RefuseBody refuse;
    refuse.code = code;
    refuse.sequence = heard.sequence;
    refuse.slice = BodyOf<wire::WriteBody>(heard).slice;
    std::vector<std::byte> body;
    wire::Append(&body, refuse);
    const std::uint32_t all = lane->sequenced;
    if (!read) lane->sequenced = heard.sequence;
    Tell(lane, read ? Type::kReadRefused : Type::kNack, heard.header.operation, body);
    lane->sequenced = all;
    Tell(lane, Type::kAck, 0, {});
  }

  void AnswerCts(PeerLane* lane, const Heard& heard) {
    const std::uint64_t operation = heard.header.operation;
    const std::uint64_t bytes = offered_[operation % offered_.size()];
    std::vector<std::byte> body;
    wire::Append(&body, wire::WriteBody{BodyOf<wire::CtsBody>(heard).key, 0, 1});
    wire::Append(&body, wire::BlockOnWire{0, bytes});
    Tell(lane, Type::kWrite, operation, body, bytes);
    body.clear();
    wire::Append(&body, wire::RefuseBody{});
    Tell(&lanes_[0], Type::kFin, operation, body);
  }

  // Sends a valid answer to the next frame.
  void Answer(PeerLane* lane) {
    const std::uint8_t how = script_->U8();
    halves_ = (how & 128) != 0;
    const auto heard = Hear(lane);
    if (!heard) return;
    const Type type = heard->header.type;
    const std::uint64_t operation = heard->header.operation;
    std::vector<std::byte> body;
    if ((how & 64) != 0 && (IsSequenced(type) || type == Type::kReadRequest)) {
      return Refuse(lane, *heard, how % 16);
    }
    switch (type) {
      case Type::kReadRequest:
        wire::Append(&body, wire::SliceBody{BodyOf<wire::WriteBody>(*heard).slice, 0});
        return Tell(lane, Type::kReadData, operation, body, BytesAskedFor(*heard));
      case Type::kRts:
        Tell(lane, Type::kAck, 0, {});
        wire::Append(&body, wire::CtsBody{{1, 2, 3}});
        return Tell(lane, Type::kCts, operation, body);
      case Type::kCts: return AnswerCts(lane, *heard);
      case Type::kPing: return Tell(lane, Type::kPong, operation, {});
      default: return Tell(lane, Type::kAck, 0, {});
    }
  }

  const Heard* PickHeard() {
    const std::size_t at = script_->U8();
    return heard_.empty() ? nullptr : &heard_[heard_.size() - 1 - at % heard_.size()];
  }

  // The key of one of our regions, of one opened for the peer, or random bytes.
  wire::KeyBody PickKey() {
    const std::size_t at = script_->U8();
    wire::KeyBody key;
    const Heard* heard = nullptr;
    for (const Heard& one : heard_) {
      if (one.header.type == Type::kCts) heard = &one;
    }
    if (heard != nullptr && at % 4 == 3) {
      key = BodyOf<wire::KeyBody>(*heard);
    } else if (!memories_.empty()) {
      key = memories_[at % memories_.size()]->region->remote().key;
    }
    if (at >= 240) key.generation += static_cast<std::uint32_t>(at - 247);
    if (at == 255) key.token ^= script_->U64();
    return key;
  }

  std::uint64_t AppendBlocks(std::vector<std::byte>* body) {
    const auto blocks = static_cast<std::uint32_t>(script_->Below(8));
    wire::Append(body, wire::WriteBody{PickKey(), script_->U8(), blocks});
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      // Mostly within the region, and beyond it often enough.
      const wire::BlockOnWire block{script_->U16() % 8192U, script_->U16() % 2048U};
      wire::Append(body, block);
      bytes += block.length;
    }
    return bytes;
  }

  // The body of a frame, and how much payload belongs to it.
  std::uint64_t AppendBody(Type type, const Heard* about, std::vector<std::byte>* body) {
    switch (type) {
      case Type::kWrite: return AppendBlocks(body);
      case Type::kReadRequest: (void)AppendBlocks(body); return 0;
      case Type::kReadData: {
        const bool known = about != nullptr && about->header.type == Type::kReadRequest;
        const std::uint32_t slice = known ? BodyOf<wire::WriteBody>(*about).slice : script_->U8();
        wire::Append(body, wire::SliceBody{slice, 0});
        return known ? BytesAskedFor(*about) : script_->U16();
      }
      case Type::kSend:
      case Type::kRts: {
        const std::uint64_t bytes = script_->U16() % ((script_->U8() & 7) == 0 ? 70'000U : 2048U);
        wire::Append(body, wire::TagBody{script_->Below(4), bytes});
        return type == Type::kSend ? bytes : 0;
      }
      case Type::kCts: wire::Append(body, wire::CtsBody{{1, 2, 3}}); return 0;
      case Type::kReadRefused:
      case Type::kFin:
      case Type::kDeclined:
      case Type::kNack: {
        wire::RefuseBody refuse;
        refuse.sequence = about != nullptr ? about->sequence : script_->U32();
        refuse.slice = about != nullptr ? BodyOf<wire::WriteBody>(*about).slice : script_->U8();
        refuse.code = static_cast<std::uint8_t>(script_->Below(16));
        wire::Append(body, refuse);
        return 0;
      }
      case Type::kNotify: return script_->U16();
      default: return 0;
    }
  }

  void Say() {
    PeerLane& lane = lanes_[script_->Below(kLanes)];
    const Type type = kSayings[script_->Below(std::size(kSayings))];
    const std::uint8_t how = script_->U8();
    const Heard* const about = PickHeard();
    wire::MessageHeader header;
    header.type = type;
    header.ack = lane.sequenced;
    header.operation = about != nullptr && (how & 1) == 0 ? about->header.operation
                                                          : script_->Below(offered_.size());
    std::vector<std::byte> body;
    std::uint64_t payload = AppendBody(type, (how & 1) == 0 ? about : nullptr, &body);
    if (type == Type::kRts) {
      wire::TagBody tag;
      std::memcpy(&tag, body.data(), sizeof tag);
      offered_[header.operation % offered_.size()] = tag.bytes;
    }
    if ((how & 2) != 0) header.ack += script_->U8();
    if ((how & 4) != 0) payload = script_->U32();
    std::vector<std::byte> meta;
    wire::Append(&meta, header);
    meta.insert(meta.end(), body.begin(), body.end());
    if ((how & 8) != 0) Tamper(&meta);
    const std::uint64_t heard_now = (how & 16) != 0 ? script_->U16() : payload;
    last_ = {meta, payload};
    RunOnLoop(loop_, [&] {
      lane.end->Say(std::move(meta), payload);
      lane.end->Deliver(std::min<std::uint64_t>(heard_now, 1 << 20));
    });
  }

  void Tamper(std::vector<std::byte>* meta) {
    const std::size_t at = script_->U8() % meta->size();
    switch (script_->Below(3)) {
      case 0: meta->resize(std::max<std::size_t>(at, 1)); return;
      case 1: (*meta)[at] ^= static_cast<std::byte>(script_->U8()); return;
      default: {
        const auto more = script_->Bytes(script_->U8());
        meta->insert(meta->end(), more.begin(), more.end());
      }
    }
  }

  // The last frame again, often enough to come to the limits.
  void Repeat() {
    const std::size_t times = script_->U8() * std::size_t{4};
    PeerLane& lane = lanes_[script_->Below(kLanes)];
    if (last_.first.empty() || last_.second > 4096) return;
    RunOnLoop(loop_, [&] {
      for (std::size_t i = 0; i < times && lane.end->open() && !lane.end->busy(); ++i) {
        lane.end->Say(last_.first, last_.second);
        lane.end->Deliver(last_.second);
      }
    });
  }

  // ---- this side's application

  void Register() {
    const auto rights = static_cast<Rights>(script_->Below(4));
    const std::size_t size = 1 + script_->U16() % 20'000;
    if (memories_.size() == kMaxMemories) return;
    auto memory = std::make_unique<Memory>();
    memory->size = size;
    memory->bytes = std::make_unique<std::byte[]>(size);
    std::memset(memory->bytes.get(), std::to_integer<int>(kFill), size);
    auto region = host_.endpoint->Register(memory->span(), rights);
    FERRY_CHECK(region.has_value());
    memory->region = *std::move(region);
    memories_.push_back(std::move(memory));
  }

  WriteOptions Options() {
    WriteOptions options;
    const std::uint8_t how = script_->U8();
    if ((how & 15) == 15) options.deadline = Now();
    if ((how & 16) != 0) options.notification = notification_;
    return options;
  }

  void Keep(Result<Operation> posted, std::unique_ptr<std::byte[]> buffer = nullptr) {
    if (posted) running_.push_back({*std::move(posted), std::move(buffer)});
  }

  // A write or read of ours, in up to eight pieces.
  void Access() {
    const bool writes = script_->Below(2) == 0;
    const std::size_t at = script_->U8();
    const std::size_t pieces = 1 + script_->Below(8);
    const std::uint64_t bytes = 1 + script_->U16();
    const WriteOptions options = Options();
    if (memories_.empty() || running_.size() >= kMaxOperations) return;
    Memory& memory = *memories_[at % memories_.size()];
    const std::uint64_t each =
        std::max<std::uint64_t>(std::min<std::uint64_t>(bytes, memory.size) / pieces, 1);
    const RemoteRegion remote{peer_, {7, 8, 9}, Rights::kReadWrite, 1 << 20};
    TransferPart part{&*memory.region, &remote, {}};
    for (std::uint64_t i = 0; i < pieces && (i + 1) * each <= memory.size; ++i) {
      const std::uint64_t there = i * each * 2;
      part.blocks.Add(writes ? Block{there, i * each, each} : Block{i * each, there, each});
    }
    std::vector<TransferPart> parts;
    parts.push_back(std::move(part));
    auto prepared = writes ? connection_->PrepareWrite(std::move(parts))
                           : connection_->PrepareRead(std::move(parts));
    if (!prepared) return;
    if (!writes) memory.read_into = true;
    Keep(writes ? connection_->Write(*prepared, options)
                : connection_->Read(*prepared, {.deadline = options.deadline}));
  }

  void Message() {
    const std::size_t kind = script_->Below(3);
    const std::uint64_t tag = script_->Below(4);
    const std::size_t bytes = script_->U16() % ((script_->U8() & 7) == 0 ? 20'000U : 1024U);
    const std::optional<Deadline> deadline = Options().deadline;
    if (running_.size() >= kMaxOperations) return;
    auto buffer = std::make_unique<std::byte[]>(bytes);
    const std::span<std::byte> memory(buffer.get(), bytes);
    switch (kind) {
      case 0:
        return Keep(connection_->Send(tag, memory, {.deadline = deadline}), std::move(buffer));
      case 1:
        return Keep(connection_->Recv(tag, 3, memory, {.deadline = deadline}), std::move(buffer));
      default:
        Keep(connection_->Notify(memory.first(std::min<std::size_t>(bytes, 2000)),
                                 {.deadline = deadline}),
             std::move(buffer));
    }
  }

  void End() {
    const std::size_t at = script_->U8();
    if ((at & 1) != 0) {
      if (!running_.empty()) running_[at / 2 % running_.size()].operation.Cancel();
      return;
    }
    if (memories_.empty()) return;
    const auto chosen = memories_.begin() + static_cast<std::ptrdiff_t>(at / 2 % memories_.size());
    if (TryDeregister(chosen->get(), Now())) memories_.erase(chosen);
  }

  Script* const script_;
  Host& host_;
  EventLoop& loop_;
  const Uuid peer_ = Uuid::Random();
  wire::WelcomeBody welcome_;
  std::uint32_t attempts_ = 0;
  std::array<PeerLane, kLanes> lanes_;
  std::deque<Heard> heard_;
  std::array<std::uint64_t, 8> offered_{};  // bytes, by the peer's operation
  std::pair<std::vector<std::byte>, std::uint64_t> last_;
  bool halves_ = false;
  std::vector<std::byte> notification_ = std::vector<std::byte>(100);
  // Freed after the operations on it, which are freed after the connection is closed.
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<Running> running_;
  std::optional<Connection> connection_;
};

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ferry::fuzz::Script script(data, size);
  ferry::fuzz::Session(&script).Run();
  return 0;
}
