// The conformance suite that every DeviceApi must pass.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/testing/device_target.h"

// Tests of the contract in device_api.h, for every DeviceApi.
namespace ferry::cuda {

// The deadline of waits that end at once unless something is broken.
Deadline Soon();

// Blocks a stream until it is opened or destroyed.
class StreamGate {
 public:
  // The stream must support flags.
  static Result<std::unique_ptr<StreamGate>> Close(DeviceApi& api, StreamRef stream);
  ~StreamGate();
  void Open() noexcept;

 private:
  explicit StreamGate(PinnedBuffer word) : word_(std::move(word)) {}
  PinnedBuffer word_;
};

class DeviceConformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override;

  DeviceApi& api() { return target_->api(); }
  // Memory of device 0; a failure ends the test.
  DeviceBuffer Device(std::size_t bytes, int ordinal = 0);
  PinnedBuffer Pinned(std::size_t bytes);
  Stream NewStream(int ordinal = 0);
  Event NewEvent(int ordinal = 0, EventTiming timing = EventTiming::kOff);
  // Skips the test where streams do not support flags.
  std::unique_ptr<StreamGate> Gate(StreamRef stream);

  // Copies through pinned memory and a stream of its own, and waits for the end.
  void Upload(const DeviceBuffer& to, std::span<const std::byte> bytes);
  std::vector<std::byte> Download(const DeviceBuffer& from);

  Status CopyOne(StreamRef stream, CopyKind kind, void* dst, const void* src, std::size_t bytes);
  // dst[i] = src[i] + add.
  Status Add(StreamRef stream, const void* dst, const void* src, std::size_t words,
             std::uint32_t add);

  std::unique_ptr<DeviceTarget> target_;
};

// Ends the test with the error of a Status or Result.
#define FERRY_ASSERT_OK(expression)                                 \
  do {                                                              \
    const auto& ferry_outcome = (expression);                       \
    ASSERT_TRUE(ferry_outcome) << ferry_outcome.error().ToString(); \
  } while (0)

}  // namespace ferry::cuda
