// Tests of the limit of a kernel's shared memory, without a GPU.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// Declared in ferry/cuda/launch.cuh, which only nvcc can compile.
namespace ferry::cuda {

Status AllowSharedMemory(const void* kernel, std::size_t dynamic, const char* name,
                         StreamRef stream, int (*set)(const void*, std::size_t));

namespace {

using ::testing::ElementsAre;

std::vector<std::size_t> limits_set;  // what CUDA has been told

int SetUpTo200(const void* /*kernel*/, std::size_t bytes) {
  if (bytes > 200) return cudaErrorInvalidValue;
  limits_set.push_back(bytes);
  return cudaSuccess;
}

bool IsAllowed(const void* kernel, int device, std::size_t bytes) {
  return AllowSharedMemory(kernel, bytes, "a kernel", StreamRef::Foreign(device, nullptr),
                           SetUpTo200)
      .has_value();
}

TEST(SharedMemoryLimit, IsNotLoweredBelowWhatAnotherThreadMayBeAboutToLaunchWith) {
  limits_set.clear();
  static const int kernel = 0;
  static const int other = 0;
  EXPECT_TRUE(IsAllowed(&kernel, 0, 150));
  EXPECT_TRUE(IsAllowed(&kernel, 0, 50));
  EXPECT_TRUE(IsAllowed(&kernel, 1, 60));
  EXPECT_TRUE(IsAllowed(&other, 0, 70));
  EXPECT_THAT(limits_set, ElementsAre(150, 150, 60, 70));
}

TEST(SharedMemoryLimit, StaysAsItIsWhereMoreIsRefused) {
  limits_set.clear();
  static const int kernel = 0;
  EXPECT_TRUE(IsAllowed(&kernel, 0, 100));
  EXPECT_FALSE(IsAllowed(&kernel, 0, 300));
  EXPECT_TRUE(IsAllowed(&kernel, 0, 90));
  EXPECT_THAT(limits_set, ElementsAre(100, 100));
}

}  // namespace
}  // namespace ferry::cuda
