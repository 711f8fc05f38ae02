// Tests of handles by which processes share simulated device memory.
#include "ferry/cuda/simulated/ipc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "ferry/core/testing/forked_child.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kShared = 3 * kSimulatedPage;

class SimulatedIpcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto arena = SimulatedArena::Create();
    ASSERT_TRUE(arena) << arena.error().ToString();
    arena_ = *std::move(arena);
    offset_ = *arena_->Take(kShared);
    exported_ = MakeSimulatedExport(*arena_, offset_, kShared);
  }
  static std::string Refusal(const IpcExport& exported) {
    const auto mapped = MapSimulatedExport(exported);
    return mapped ? std::string() : mapped.error().message();
  }

  std::unique_ptr<SimulatedArena> arena_;
  std::size_t offset_ = 0;
  IpcExport exported_;
};

TEST_F(SimulatedIpcTest, AnotherProcessReadsAndWritesTheSameBytes) {
  FERRY_SKIP_FORK_TEST();
  arena_->alias(offset_)[kShared - 1] = std::byte{5};
  const int status = StatusOfChild([this] {
    const auto mapped = MapSimulatedExport(exported_);
    if (!mapped || mapped->bytes() != kShared) return 1;
    if (mapped->alias()[kShared - 1] != std::byte{5}) return 2;
    mapped->alias()[0] = std::byte{6};
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(arena_->alias(offset_)[0], std::byte{6});
}

TEST_F(SimulatedIpcTest, AProcessDoesNotImportWhatItHasExported) {
  EXPECT_THAT(Refusal(exported_), HasSubstr("cudaErrorDeviceUninitialized"));
}

TEST_F(SimulatedIpcTest, BytesThatAreNoHandleAreRefused) {
  EXPECT_THAT(Refusal({}), HasSubstr("cudaErrorInvalidResourceHandle"));
  IpcExport other = exported_;
  other.bytes = kShared + 1;
  EXPECT_THAT(Refusal(other), HasSubstr("cudaErrorInvalidResourceHandle")) << "of another size";
  other = exported_;
  other.handle[0] ^= std::byte{1};
  EXPECT_THAT(Refusal(other), HasSubstr("cudaErrorInvalidResourceHandle"));
}

TEST_F(SimulatedIpcTest, AnExporterThatIsGoneIsSaidToBe) {
  FERRY_SKIP_FORK_TEST();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int status = StatusOfChild([&] {
    const auto arena = SimulatedArena::Create();
    if (!arena) return 1;
    const IpcExport exported = MakeSimulatedExport(**arena, 0, kShared);
    const auto written = ::write(ends[1], exported.handle.data(), exported.handle.size());
    return written == static_cast<ssize_t>(exported.handle.size()) ? 0 : 2;
  });
  ASSERT_EQ(status, 0);
  IpcExport gone;
  gone.bytes = kShared;
  ASSERT_EQ(::read(ends[0], gone.handle.data(), gone.handle.size()),
            static_cast<ssize_t>(gone.handle.size()));
  EXPECT_THAT(Refusal(gone), HasSubstr("which is gone or not ours"));
  for (const int end : ends) (void)::close(end);
}

TEST_F(SimulatedIpcTest, ADescriptorThatNowIsAnotherFileIsNotMapped) {
  FERRY_SKIP_FORK_TEST();
  // In a child, whose handle of its parent has the number of a file that the parent has replaced.
  const auto other = SimulatedArena::Create();
  ASSERT_TRUE(other);
  ASSERT_GE(::dup2((*other)->fd(), arena_->fd()), 0);
  EXPECT_EQ(StatusOfChild([this] {
              const std::string refusal = Refusal(exported_);
              return refusal.find("gone or not ours") != std::string::npos ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace ferry::cuda
