// Tests of tensor maps and of what is known of kernels, with and without a driver. None uses a GPU.
#include "ferry/cuda/tensor_map.cuh"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/cuda/real/driver.h"

namespace ferry::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A tensor of 256 rows of 128 elements at an address that is only written into the map.
TensorMapShape RightShape() {
  TensorMapShape shape;
  shape.data = reinterpret_cast<const void*>(0x7f0000000000);
  shape.rank = 2;
  shape.size = {128, 256};
  shape.stride_bytes = {0, 256};
  shape.tile = {64, 128};
  return shape;
}

bool CanMakeMaps() {
  const auto driver = real::LoadDriver();
  return driver && (*driver)->tensor_map_encode_tiled != nullptr;
}

TEST(TensorMaps, WithoutADriverAreUnsupported) {
  if (CanMakeMaps()) GTEST_SKIP() << "there is a driver";
  const auto map = MakeTensorMap(RightShape());
  ASSERT_FALSE(map);
  EXPECT_EQ(map.error().code(), Code::kUnsupported) << map.error().ToString();
  EXPECT_THAT(map.error().message(), AnyOf(HasSubstr("libcuda.so.1"), HasSubstr("NVIDIA driver")));
}

TEST(TensorMaps, OfShapesThatFitAreMade) {
  if (!CanMakeMaps()) GTEST_SKIP() << "no driver";
  for (const TensorElement element : {TensorElement::kFloat16, TensorElement::kBfloat16}) {
    TensorMapShape shape = RightShape();
    shape.element = element;
    const auto map = MakeTensorMap(shape);
    EXPECT_TRUE(map) << map.error().ToString();
    shape.rank = 4;
    shape.size = {64, 10, 3, 2};
    shape.stride_bytes = {0, 128, 1280, 3840};
    shape.tile = {64, 1, 1, 2};
    const auto deep = MakeTensorMap(shape);
    EXPECT_TRUE(deep) << deep.error().ToString();
  }
}

TEST(TensorMaps, OfShapesThatDoNotFitAreRefusedWithTheShape) {
  if (!CanMakeMaps()) GTEST_SKIP() << "no driver";
  const struct {
    const char* what;
    void (*spoil)(TensorMapShape* shape);
  } kCases[] = {
      {"an address that is not aligned",
       [](TensorMapShape* s) { s->data = static_cast<const std::byte*>(s->data) + 8; }},
      {"a stride that is not aligned", [](TensorMapShape* s) { s->stride_bytes[1] = 264; }},
      {"a stride that is too long",
       [](TensorMapShape* s) { s->stride_bytes[1] = std::uint64_t{1} << 40; }},
      {"no rows", [](TensorMapShape* s) { s->size[1] = 0; }},
      {"too many rows", [](TensorMapShape* s) { s->size[1] = (std::uint64_t{1} << 32) + 1; }},
      {"a tile without rows", [](TensorMapShape* s) { s->tile[1] = 0; }},
      {"a tile of too many rows", [](TensorMapShape* s) { s->tile[1] = 257; }},
      {"a tile that is wider than its swizzle", [](TensorMapShape* s) { s->tile[0] = 128; }},
  };
  for (const auto& [what, spoil] : kCases) {
    TensorMapShape shape = RightShape();
    spoil(&shape);
    const auto map = MakeTensorMap(shape);
    ASSERT_FALSE(map) << what;
    EXPECT_EQ(map.error().code(), Code::kInvalidArgument) << what;
    EXPECT_THAT(map.error().message(), HasSubstr("cuTensorMapEncodeTiled for tiles [")) << what;
  }
}

// CUDA does not know this address as a kernel.
const int kNoKernel = 0;

TEST(HopperCode, OfWhatIsNoKernelIsNone) {
  const StreamRef stream = StreamRef::Foreign(0, nullptr);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(HasHopperCode(&kNoKernel, stream)) << "also when cached";
}

TEST(HopperCode, IsLeftToTheLaunchWhereCudaDoesNotAnswer) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) GTEST_SKIP() << "there is a GPU";
  EXPECT_TRUE(CheckHopperCode(&kNoKernel, "no_kernel", StreamRef::Foreign(0, nullptr)));
}

}  // namespace
}  // namespace ferry::cuda
