// The receiving end of a stand-in connection.
#pragma once
#include <array>
#include <random>

#include "standin/comm.h"
#include "standin/memory/fragments.h"
#include "standin/memory/pool.h"

namespace ferry::standin {

class RecvComm final : public Comm {
 public:
  // Null, with a log line, if the device has no memory for it.
  static std::unique_ptr<RecvComm> Make(Engine& engine, int device, Link link);

  // The device handle that accept() returns.
  abi::DeviceHandle Handle() const;
  int Receive(const Posting& posting, void** request);
  int Consumed(const void* request);

 private:
  // State of a request from its first control record until it is consumed.
  struct Arrival {
    std::uint64_t posted = 0;  // bytes
    Landing landing;
    Fault fault = Fault::kNone;
  };

  RecvComm(Engine& engine, int device, Pool* pool);
  // On failure nothing stays allocated.
  bool SetUp();
  // Writes the device's handle by way of `staged`, which is pinned, and waits for the copy's end.
  bool PlaceHandle(std::byte* meta, std::byte* staged);

  int Progress() override;
  bool Complete(std::uint64_t number) override;
  bool Work(Lane& lane, const Task& task) override;
  void Release() override;

  bool ReadRecord();
  bool RecordIsSane(const tcpx::Request& request) const;
  bool Begin(std::uint64_t number);
  void TakeRow(tcpx::Request* request);
  Fault FaultOfNext();
  void Publish(tcpx::Request* request, const Arrival& arrival);

  Pool* pool_;
  tcpx::UnpackMeta* meta_ = nullptr;
  std::byte* handle_ = nullptr;  // UnpackHandle, on the device
  std::uint64_t rows_taken_ = 0;
  std::uint64_t rows_freed_ = 0;
  ControlRecord record_;
  std::size_t record_bytes_ = 0;  // of it that have come
  bool control_ended_ = false;
  bool has_complained_ = false;  // of a message that the pool can never hold
  std::mt19937_64 random_;
  std::array<Arrival, kRequests> arrivals_;
};

}  // namespace ferry::standin
