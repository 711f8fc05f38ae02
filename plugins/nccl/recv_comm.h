// The receiving end of a comm.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "plugins/nccl/comm.h"

namespace ferry::nccl_net {

// The destination of one message.
struct Incoming {
  std::span<std::byte> data;
  int tag = 0;
};

// The receiving end. The sender is told at once about large receives (a credit), so that their
// payload arrives directly in its destination. Small messages arrive unasked: they are kept until
// their receive is posted, even after the sender has closed. Their receives are announced along
// with other frames, so that the sender always has credit for some.
class RecvComm final : public Comm {
 public:
  // `early_bytes`: messages up to this size are sent without a credit, up to kMaxEarly of them.
  RecvComm(Engine* engine, EventLoop* swift, std::size_t lanes, std::uint64_t early_bytes);

  // 1 to kMaxReceives places. Returns null if there are too many requests already. Errors: the
  // comm's. Never blocks.
  Result<Request*> Receive(std::span<const Incoming> places);
  // Errors: kInvalidArgument for a message that is larger than its place, which ends the comm.
  Result<Tested> Test(Request* request) override;

 private:
  struct RecvRequest;
  // The parts of a message that a lane is delivering or has delivered. Reused, to keep its memory.
  class Claims {
   public:
    void Clear() { parts_.clear(); }
    // Returns false if some of the bytes are claimed already, or if there are more parts than a
    // correct sender, whose lanes deliver in order, can cause.
    bool Take(std::uint64_t offset, std::uint64_t bytes);

   private:
    struct Part {
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
    };
    static constexpr std::size_t kMaxParts = 16'384;
    std::vector<Part> parts_;  // sorted; no part touches the next
  };
  struct Slot {
    RecvRequest* request = nullptr;
    std::span<std::byte> data;
    int tag = 0;
    std::uint64_t sequence = 0;
    bool begun = false;
    std::uint64_t total = 0;     // once begun
    std::uint64_t received = 0;  // received bytes of total
    Claims claims;
  };
  // A message that arrived, or is arriving, before its receive was posted.
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
    std::atomic<std::uint32_t> left{0};  // slots that are not complete
  };
  struct Tag {
    int tag = 0;
    std::uint64_t posted = 0;
    std::uint64_t told = 0;  // receives that the sender was told of
    // Receives that the sender wants to be told of as soon as they are posted.
    std::uint64_t asked = 0;
  };
  // The frame that a lane is receiving; used on its loop.
  struct Landing {
    Slot* slot = nullptr;
    Early* early = nullptr;  // instead of a slot
    iovec place{};
  };

  Tag& TagOf(int tag);
  RecvRequest* FreeRequest();
  bool MustTellLocked(const Tag& tag, std::size_t room) const noexcept;
  bool HasHeardEnoughLocked() const noexcept;
  bool IsToTellLocked(std::size_t lane);
  void TellOnLoop();
  void AnswerByeOnLoop();
  Status OnAsk(std::span<const CountWire> asked);
  net::Placement PlaceLocked(std::size_t lane, const DataWire& data, std::uint64_t payload_bytes);
  Slot* FindPostedLocked(const DataWire& data);
  Status CheckPieceLocked(Slot* slot, const DataWire& data, std::uint64_t payload_bytes);
  Result<Early*> KeepEarlyLocked(std::size_t lane, const DataWire& data,
                                 std::uint64_t payload_bytes);
  bool MeetEarlyLocked(Slot* slot);
  void DeliverEarlyLocked(Early* early);
  void FinishLocked(Slot* slot);

  Result<net::Placement> HandleFrame(std::size_t lane, std::span<const std::byte> meta,
                                     std::uint64_t payload_bytes) override;
  Status HandlePayload(std::size_t lane) override;
  void OnLaneLost(const LostLane& lane, const Error& error) override;
  void OnComplete() override;
  void OnBye() override;
  bool Uses(std::span<const std::byte> memory) const override;
  const char* kind() const noexcept override { return "irecv"; }

  const std::uint64_t early_bytes_;
  std::vector<Landing> landings_;  // by lane
  bool bye_heard_ = false;         // swift loop
  Frame welcome_;                  // loop of lane 0

  // Under mutex_.
  std::vector<Tag> tags_;
  std::vector<std::unique_ptr<RecvRequest>> requests_;
  std::vector<RecvRequest*> free_;
  std::vector<Slot*> posted_;  // not complete, oldest first
  std::vector<std::unique_ptr<Early>> early_;
  std::uint64_t early_total_ = 0;  // bytes in early_
  bool telling_ = false;           // TellOnLoop() is scheduled
  std::size_t heard_ = 0;          // complete messages whose receives were not announced
  std::uint64_t heard_bytes_ = 0;
  std::optional<Error> ended_;  // set when all lanes have ended with messages left in early_
};

}  // namespace ferry::nccl_net
