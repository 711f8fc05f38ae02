// Tests of the reduction of tensors to rows.

#include "ferry/kernels/rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace ferry::kernels {
namespace {

Tensor RowsTensor(std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> stride) {
  Tensor tensor = Tensor::Contiguous(nullptr, DType::kBfloat16, shape);
  std::copy(stride.begin(), stride.end(), tensor.stride.begin());
  return tensor;
}

std::vector<std::int64_t> OffsetsOf(const JoinedRows& joined, std::size_t tensor) {
  std::vector<std::int64_t> offsets;
  for (std::uint32_t row = 0; row < joined.sizes.count(); ++row) {
    offsets.push_back(RowOffset(joined.sizes, joined.strides[tensor], row));
  }
  return offsets;
}

// By the definition of a view, in the order of the indices.
std::vector<std::int64_t> OffsetsOf(const Tensor& tensor) {
  std::vector<std::int64_t> offsets{0};
  for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(tensor.rank); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < tensor.shape[d]; ++i) {
        next.push_back(offset + i * tensor.stride[d]);
      }
    }
    offsets = next;
  }
  return offsets;
}

TEST(Rows, AreWhereTheStridesSayWhateverIsJoined) {
  const std::initializer_list<std::int64_t> shape = {3, 4, 5, 8};
  const std::vector<Tensor> tensors = {
      RowsTensor(shape, {160, 40, 8, 1}),     RowsTensor(shape, {200, 40, 8, 1}),
      RowsTensor(shape, {1000, 50, 10, 1}),   RowsTensor(shape, {1000, 100, 8, 1}),
      RowsTensor(shape, {0, 0, 0, 1}),        RowsTensor({1, 4, 1, 8}, {9, 100, 7, 1}),
      RowsTensor({6, 1, 1, 8}, {8, 0, 0, 1}), RowsTensor({2, 1, 5, 8}, {60, 9, 12, 1}),
  };
  for (const Tensor& a : tensors) {
    for (const Tensor& b : tensors) {
      if (a.shape != b.shape) continue;
      const JoinedRows joined = JoinRows({&a, &b});
      EXPECT_EQ(OffsetsOf(joined, 0), OffsetsOf(a));
      EXPECT_EQ(OffsetsOf(joined, 1), OffsetsOf(b));
    }
  }
}

TEST(Rows, ThatFollowEachOtherInAllTensorsBecomeOneSize) {
  const Tensor dense = RowsTensor({3, 4, 8}, {32, 8, 1});
  const Tensor strided = RowsTensor({3, 4, 8}, {400, 8, 1});
  EXPECT_EQ(JoinRows({&dense, &dense}).sizes, (RowSizes{1, 1, 12}));
  EXPECT_EQ(JoinRows({&dense, &strided}).sizes, (RowSizes{1, 3, 4}));
  const Tensor single = RowsTensor({8}, {1});
  EXPECT_EQ(JoinRows({&single}).sizes, (RowSizes{1, 1, 1}));
}

TEST(Rows, AreAlignedWhereEachOneBeginsAtAMultiple) {
  alignas(16) static std::byte memory[64];
  Tensor tensor = RowsTensor({3, 4, 8}, {48, 8, 1});
  tensor.data = memory;
  EXPECT_TRUE(RowsAreAligned(tensor, 16));
  tensor.data = memory + 2;
  EXPECT_FALSE(RowsAreAligned(tensor, 16));
  tensor.data = memory;
  tensor.stride[0] = 44;
  EXPECT_FALSE(RowsAreAligned(tensor, 16));
  tensor.shape[0] = 1;
  EXPECT_TRUE(RowsAreAligned(tensor, 16));
}

}  // namespace
}  // namespace ferry::kernels
