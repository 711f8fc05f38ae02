// Halves of lanes that are kept for a stuck GPU end when their copies have.
#include "ferry/tcpx/lane/lane_buffers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::tcpx {
namespace {

using transfer::Must;

class StuckHalves : public ::testing::Test {
 protected:
  // Owns the pool and gives its buffers back, as the receiving half of a lane does.
  class Half {
   public:
    Half(std::shared_ptr<LaneBufferPool> pool, std::unique_ptr<LaneBuffers> buffers, bool* gone)
        : pool_(std::move(pool)), buffers_(std::move(buffers)), gone_(gone) {}
    Half(const Half&) = delete;
    Half& operator=(const Half&) = delete;
    ~Half() {
      *gone_ = true;
      pool_->Give(std::move(buffers_));
    }

   private:
    const std::shared_ptr<LaneBufferPool> pool_;
    std::unique_ptr<LaneBuffers> buffers_;
    bool* const gone_;
  };

  void SetUp() override {
    Config config;
    // Devices of its own, because others would be lost with it.
    static int seed = 500;
    ASSERT_TRUE(config.Set("devices", "simulated:1:" + std::to_string(++seed) + ":open"));
    gpu_.api = Must(cuda::OpenDevices(config));
    gpu_.buffers = pool_;
  }
  // A half whose copy the GPU does not begin before Resume().
  void KeepOne() {
    auto buffers = Must(pool_->Take(gpu_, {4096, 1, 1}));
    simulated().Pause();  // now, because new buffers wait for the device
    const Block block{0, 0, 64};
    const PlacedList list{
        {&block, 1}, Place::OnDevice(buffers->gpu_slots.data()), buffers->slots_place};
    (void)Must(buffers->unpacker->Enqueue({&list, 1}));
    Unpacker* const unpacker = buffers->unpacker.get();
    pool_->KeepStuck(std::make_shared<Half>(pool_, std::move(buffers), &gone_), unpacker);
  }
  cuda::SimulatedDevices& simulated() { return dynamic_cast<cuda::SimulatedDevices&>(*gpu_.api); }

  LaneGpu gpu_;
  std::shared_ptr<LaneBufferPool> pool_ = std::make_shared<LaneBufferPool>();
  bool gone_ = false;
};

TEST_F(StuckHalves, StayWhileTheirCopiesAreInFlight) {
  KeepOne();
  pool_->DestroyIdle();
  EXPECT_FALSE(gone_);
  simulated().Resume();
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  while (!gone_ && !deadline.expired()) pool_->DestroyIdle();
  EXPECT_TRUE(gone_);
  EXPECT_EQ(pool_.use_count(), 2);  // pool_ and gpu_: the half has not kept it
}

TEST_F(StuckHalves, EndWithTheNextLaneThatEnds) {
  auto buffers = Must(MakeBuffers(gpu_, {4096, 1, 1}));
  KeepOne();
  simulated().Resume();
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  while (!gone_ && !deadline.expired()) {
    pool_->Give(std::move(buffers));
    buffers = Must(MakeBuffers(gpu_, {4096, 1, 1}));
  }
  EXPECT_TRUE(gone_);
}

TEST_F(StuckHalves, EndWhenTheirGpuIsLost) {
  auto other = Must(MakeBuffers(gpu_, {4096, 1, 1}));
  KeepOne();
  simulated().Inject({.at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kIllegalAddress});
  const Block block{0, 0, 64};
  const PlacedList list{{&block, 1}, Place::OnDevice(other->gpu_slots.data()), other->slots_place};
  (void)other->unpacker->Enqueue({&list, 1});
  simulated().Resume();
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  while (!gone_ && !deadline.expired()) pool_->DestroyIdle();
  EXPECT_TRUE(gone_);
}

}  // namespace
}  // namespace ferry::tcpx
