// The receiving half of a lane: what is arriving from the peer, and where it goes.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/lane/send_window.h"

namespace ferry::transfer {

// Answers reads with the region's data, or with a refusal, in the order of the requests: the peer
// expects them so. Lives on the lane's loop.
class ReadAnswers {
 public:
  ReadAnswers(const LaneSite& site, FrameSender* frames, SendWindow* window, StagingOutbox* outbox)
      : site_(site), frames_(frames), window_(window), outbox_(outbox) {}

  // Serves a kReadRequest. kPause: there is no memory
  // for the answer now; the request is offered again and starts over. An error ends the connection.
  Result<net::Placement> OnRequest(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Refuses answers from the region that wait for a staging slot.
  void RefuseWaiting(const RegionState* region);

 private:
  void Answer(LaneFrame* frame, RegionPin region, std::uint32_t slice);
  void Refuse(std::uint64_t operation_id, std::uint32_t slice, const Error& error);

  const LaneSite& site_;
  FrameSender* const frames_;
  SendWindow* const window_;
  StagingOutbox* const outbox_;
};

// Places the payloads of the peer's frames, checks them and counts the frames as processed. Refuses
// what the peer may not do: the refusal reaches it before the frame counts. Lives on the lane's
// loop.
class FrameReceiver {
 public:
  enum class State : std::uint8_t {
    kIdle,        // between two frames
    kPlacing,     // the payload goes to its destination
    kStaging,     // the payload goes into a slot, and from there into GPU memory
    kDiscarding,  // the payload is read and dropped
    kPaused,      // a frame waits; the lane presents it again when resumed
  };
  // What a paused frame waits for.
  enum class Wait : std::uint8_t {
    kPeer,    // until the peer reads or acknowledges more, or memory is free
    kCopies,  // copies into GPU memory
    kSlot,    // a staging slot
  };

  FrameReceiver(const LaneSite& site, FrameSender* frames, ReadRequests* reads,
                LaneStaging* staging);

  // The lane to receive from; null: none. Stops receiving from the lane before: from here on
  // nothing of its payload is written.
  void SetLane(net::Lane* lane);

  // ---- A frame has come.
  //
  // Whether it must wait whatever it is; pauses then.
  bool MustPause();
  // A frame with data, or a kCopy. An error ends the connection.
  Result<net::Placement> OnFrame(const wire::MessageHeader& header, wire::MetaReader* reader,
                                 std::uint64_t payload_bytes);
  // Another frame without payload was processed.
  void Finish(std::uint64_t payload_bytes);
  net::Placement Pause(Wait wait);
  // Resumes the lane if the frame waits for this. Returns whether it did.
  bool Resume(Wait wait);
  // The lane has taken the frame: its payload, if any, follows.
  void OnTaken(std::size_t meta_bytes, std::uint64_t payload_bytes);
  // The payload is where it was to go, or dropped. If that ends a slice of a read, says so.
  std::optional<ReadEnd> OnPayload();
  // Checks a payload that has come through a slot, if the GPU has summed it. Before the copy's
  // objects are released.
  Status CheckLanding(const Landing& landing) const;

  // ---- A destination is withdrawn. Afterwards nothing is written to it.
  void Revoke(const RegionState* region);
  void DropMessage(const OperationState* receive);
  // Whether data of this read was arriving.
  bool DropRead(const OperationState* operation);

  // Counts the memory of the buffers, and frees what is not needed between two frames.
  void CountScratch();
  // Releases what the arriving frame holds. The lane is closed.
  void Close();
  // Frees the buffers. Outside the lane's callbacks.
  void Free();

  State state() const noexcept { return state_; }

 private:
  enum class What : std::uint8_t { kWrite, kRead, kMessage, kNotification };
  // The frame whose payload is arriving.
  struct Arrival {
    What what = What::kWrite;
    bool checked = false;
    bool on_gpu = false;  // pieces_ are GPU memory, into which the lane receives
    std::uint32_t crc = 0;
    std::uint64_t bytes = 0;
    std::uint64_t operation = 0;
    std::uint64_t tag = 0;      // kMessage
    OperationRef receive;       // kMessage into a posted buffer
    RegionPin region;           // kWrite
    Clock::time_point since{};  // only if payloads are traced
  };

  struct Mismatch {
    std::uint64_t bytes;
    std::uint32_t found;
    std::uint32_t sent;
    bool read;  // an operation of this side; false: of the peer
  };

  void MoveTo(State to);
  Result<net::Placement> OnWrite(wire::MetaReader* reader);
  Result<net::Placement> OnReadData(wire::MetaReader* reader);
  Result<net::Placement> OnSend(wire::MetaReader* reader);
  Result<net::Placement> OnNotify();
  Result<net::Placement> OnCopy(wire::MetaReader* reader);
  net::Placement Place(What what, std::span<std::byte> memory);
  net::Placement PlacePieces(What what, bool revocable);
  net::Placement Discard();
  void DropRest();
  Result<net::Placement> Refuse(const Error& error);
  std::uint32_t Sequence() const;
  std::optional<ReadEnd> FinishPlaced();
  void Deliver(const Status& intact);
  bool IsArriving(What what) const;
  Status CheckPayload() const;
  std::string PlaceName() const;
  Error Corrupt(const Mismatch& mismatch, const std::string& place) const;

  const LaneSite& site_;
  FrameSender* const frames_;
  ReadRequests* const reads_;
  StagingInbox* const inbox_;
  StagingEvents* const events_;
  net::Lane* lane_ = nullptr;
  State state_ = State::kIdle;
  Wait wait_ = Wait::kPeer;  // in kPaused
  Arrival arrival_;
  std::vector<std::byte> data_;  // of a message or notification without a buffer
  std::vector<iovec> pieces_;
};

// Checks the checksum of a frame's metadata before any of it is used: a corrupted address must not
// decide where bytes are written. An error ends the connection.
Status CheckMetadata(const LaneSite& site, std::span<const std::byte> meta,
                     const wire::MessageHeader& header);

}  // namespace ferry::transfer
