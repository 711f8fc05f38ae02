// The receiving end of a comm.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/nccl_net/comm.h"

namespace ferry::nccl_net {

// A place for one message.
struct Incoming {
  std::span<std::byte> data;
  int tag = 0;
};

// The receiving end. Large receives are told to the sender at once, so that what arrives has its
// place, and goes straight there. Small messages come unasked: they are kept where they are ahead
// of their receives, also when the sender has closed, and their receives are told by the way, so
// that the sender has always leave for some.
class RecvComm final : public Comm {
 public:
  // `early_bytes`: the sender waits with no message that is not larger, but for kMostEarly of them.
  RecvComm(Engine* engine, EventLoop* swift, std::size_t lanes, std::uint64_t early_bytes);

  // 1 to kMaxReceives places. Null: there are too many requests already. Errors: the comm's.
  Result<Request*> Receive(std::span<const Incoming> places);
  // Errors: kInvalidArgument for a message that was larger than its place, which ends the comm.
  Result<Tested> Test(Request* request) override;

 private:
  struct RecvRequest;
  // Which bytes of a message have a lane to come by. Kept for its memory.
  class Claims {
   public:
    void Clear() { parts_.clear(); }
    // False where some of them are claimed already, or the parts become too many for an honest
    // sender, whose lanes deliver theirs in order.
    bool Take(std::uint64_t offset, std::uint64_t bytes);

   private:
    struct Part {
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
    };
    static constexpr std::size_t kMostParts = 16'384;
    std::vector<Part> parts_;  // in their order, none touches the next
  };
  struct Slot {
    RecvRequest* request = nullptr;
    std::span<std::byte> data;
    int tag = 0;
    std::uint64_t sequence = 0;
    bool begun = false;
    std::uint64_t total = 0;     // once begun
    std::uint64_t received = 0;  // of them
    Claims claims;
  };
  // A message that has come, or is coming, before its receive.
  struct Early {
    int tag = 0;
    std::uint64_t sequence = 0;
    std::vector<std::byte> data;
    bool whole = false;
    Slot* slot = nullptr;  // once its receive is posted
  };
  struct RecvRequest : Request {
    using Request::Request;
    std::array<Slot, kMaxReceives> slots;
    std::size_t count = 0;
    std::atomic<std::uint32_t> left{0};  // slots that are not full
  };
  struct Tag {
    int tag = 0;
    std::uint64_t posted = 0;
    std::uint64_t told = 0;   // of these the sender knows
    std::uint64_t asked = 0;  // of these it wants to know as soon as they are posted
  };
  // What a lane is receiving; of its loop.
  struct Landing {
    Slot* slot = nullptr;
    Early* early = nullptr;  // in the place of a slot
    iovec place{};
  };

  Tag& TagOf(int tag);
  RecvRequest* FreeRequest();
  bool MustTellLocked(const Tag& tag, std::size_t room) const noexcept;
  bool HasHeardEnoughLocked() const noexcept;
  bool IsToTellLocked(std::size_t lane);
  void TellOnLoop();
  void AnswerByeOnLoop();
  Status OnAskOnLoop(std::span<const CountWire> asked);
  net::Placement PlaceLocked(std::size_t lane, const DataWire& data, std::uint64_t payload_bytes);
  Slot* FindPostedLocked(const DataWire& data);
  Status CheckPieceLocked(Slot* slot, const DataWire& data, std::uint64_t payload_bytes);
  Result<Early*> KeepEarlyLocked(std::size_t lane, const DataWire& data,
                                 std::uint64_t payload_bytes);
  bool MeetEarlyLocked(Slot* slot);
  void DeliverEarlyLocked(Early* early);
  void FinishLocked(Slot* slot);

  Result<net::Placement> OnFrameOnLoop(std::size_t lane, std::span<const std::byte> meta,
                                       std::uint64_t payload_bytes) override;
  Status OnPayloadOnLoop(std::size_t lane) override;
  void OnLaneLostOnLoop(std::size_t lane, const Error& error, bool last) override;
  void OnCompleteOnLoop() override;
  void OnByeOnLoop() override;
  bool Uses(std::span<const std::byte> memory) const override;
  const char* kind() const noexcept override { return "irecv"; }

  const std::uint64_t early_bytes_;
  std::vector<Landing> landings_;  // by lane
  bool bye_heard_ = false;         // swift loop
  Frame welcome_;                  // likewise

  // Under mutex_.
  std::vector<Tag> tags_;
  std::vector<std::unique_ptr<RecvRequest>> requests_;
  std::vector<RecvRequest*> free_;
  std::vector<Slot*> posted_;  // not full, oldest first
  std::vector<std::unique_ptr<Early>> early_;
  std::uint64_t early_total_ = 0;  // bytes of these
  bool telling_ = false;           // TellOnLoop() is to come
  std::size_t heard_ = 0;          // messages that are whole, whose receives are not told
  std::uint64_t heard_bytes_ = 0;
  std::optional<Error> ended_;  // all lanes have, with messages in early_
};

}  // namespace ferry::nccl_net
