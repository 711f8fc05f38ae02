// Tests of argument checks: messages, strides, overlap.

#include "ferry/kernels/argument.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ferry/kernels/testing/compare.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

std::string SentenceOf(const Status& status) {
  if (status) return "accepted";
  EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
  return status.error().message();
}

class ArgumentTest : public ::testing::Test {
 protected:
  Tensor At(std::int64_t element, std::initializer_list<std::int64_t> shape) {
    return Tensor::Contiguous(memory_.data() + element, DType::kFloat32, shape);
  }
  std::vector<float> memory_ = std::vector<float>(4096);
};

TEST_F(ArgumentTest, ContiguousTensorsHaveTheStridesOfTheirShape) {
  const Tensor tensor = At(0, {3, 5, 7});
  EXPECT_EQ(tensor.stride, (Extents{35, 7, 1, 0}));
  EXPECT_EQ(tensor.Numel(), 105);
  EXPECT_EQ(tensor.SpanBytes(), 105 * 4);
  EXPECT_TRUE(tensor.IsContiguous());
  EXPECT_EQ(ToString(tensor), "[3, 5, 7] fp32");
  EXPECT_EQ(At(0, {0, 5}).SpanBytes(), 0);
  EXPECT_EQ(Tensor{}.Numel(), 0);
  EXPECT_EQ(ToString(Tensor{}), "left out");
}

TEST_F(ArgumentTest, StridesThatShowArePartOfTheName) {
  Tensor tensor = At(0, {2, 8});
  tensor.stride[0] = 100;
  EXPECT_FALSE(tensor.IsContiguous());
  EXPECT_EQ(tensor.SpanBytes(), 108 * 4);
  EXPECT_EQ(ToString(tensor), "[2, 8] fp32 with strides [100, 1]");
  tensor.shape[0] = 1;  // a stride that is never used
  EXPECT_TRUE(tensor.IsContiguous());
}

TEST_F(ArgumentTest, ViewsThatAreNoneAreRefusedWithTheirSizes) {
  const auto refusal = [](const Tensor& tensor) {
    return SentenceOf(Argument{"op", "x", tensor}.IsView(2, 3));
  };
  EXPECT_EQ(refusal(At(0, {2, 3})), "accepted");
  EXPECT_EQ(refusal(Tensor::Contiguous(nullptr, DType::kInt32, {0, 3})), "accepted");
  EXPECT_EQ(refusal(At(0, {2})), "op: x has 1 sizes; it must have 2 to 3");
  EXPECT_EQ(refusal(Tensor{}), "op: x has 0 sizes; it must have 2 to 3");
  Tensor tensor = At(0, {2, 3});
  tensor.stride[1] = -1;
  EXPECT_EQ(refusal(tensor), "op: x has size 3 with stride -1; neither may be negative");
  tensor = At(0, {2, 3});
  tensor.shape[0] = std::int64_t{1} << 62;
  EXPECT_THAT(refusal(tensor), HasSubstr("more than any memory has"));
  tensor = At(0, {2, 3});
  tensor.stride[0] = std::int64_t{1} << 62;
  EXPECT_THAT(refusal(tensor), HasSubstr("more than any memory has"));
  EXPECT_EQ(refusal(Tensor::Contiguous(nullptr, DType::kInt32, {2, 3})),
            "op: x is [2, 3] int32 at address 0; it must have memory");
  tensor = At(0, {2, 3});
  tensor.data = static_cast<std::byte*>(tensor.data) + 2;
  EXPECT_THAT(refusal(tensor), HasSubstr("its address must be a multiple of 4"));
}

TEST_F(ArgumentTest, WrongTypesAndShapesAreRefusedWithWhatIsAllowed) {
  const Tensor x = At(0, {7, 1024});
  const Tensor w = Tensor::Contiguous(memory_.data(), DType::kBfloat16, {1023});
  const Argument given{"rms_norm", "x", x};
  const Argument weight{"rms_norm", "weight", w};
  EXPECT_EQ(SentenceOf(given.HasType(kFloats)), "accepted");
  EXPECT_EQ(SentenceOf(given.HasType({DType::kInt32, DType::kInt64})),
            "rms_norm: x is [7, 1024] fp32; it must be int32 or int64");
  EXPECT_EQ(SentenceOf(weight.HasTypeOf(given)),
            "rms_norm: weight is [1023] bf16; it must be fp32, as x is");
  EXPECT_EQ(SentenceOf(weight.HasShape({1024}, "the last size of x")),
            "rms_norm: weight is [1023] bf16; it must be [1024], the last size of x");
  EXPECT_EQ(SentenceOf(weight.HasShapeOf(given)),
            "rms_norm: weight is [1023] bf16; it must be [7, 1024], as x is");
}

TEST_F(ArgumentTest, RowsWithGapsAndElementsThatShareMemoryAreSeen) {
  Tensor x = At(0, {4, 8});
  const Argument given{"op", "x", x};
  EXPECT_EQ(SentenceOf(given.HasDenseRows()), "accepted");
  EXPECT_EQ(SentenceOf(given.IsWritable()), "accepted");
  x.stride[0] = 7;
  EXPECT_THAT(SentenceOf(given.IsWritable()), HasSubstr("do not share memory"));
  x.stride[0] = 0;
  EXPECT_THAT(SentenceOf(given.IsWritable()), HasSubstr("do not share memory"));
  x.shape[0] = 1;
  EXPECT_EQ(SentenceOf(given.IsWritable()), "accepted");
  x.stride[1] = 2;
  EXPECT_EQ(SentenceOf(given.HasDenseRows()),
            "op: x is [1, 8] fp32 with strides [0, 2]; it must be of stride 1 along its last size");
}

TEST_F(ArgumentTest, OutputsAreTheirInputOrOtherMemory) {
  const Tensor x = At(0, {4, 8});
  const Argument read{"op", "x", x};
  const auto verdict = [&](const Tensor& out) {
    return SentenceOf(Argument{"op", "out", out}.IsOrIsApartFrom(read));
  };
  EXPECT_EQ(verdict(x), "accepted");
  EXPECT_EQ(verdict(At(32, {4, 8})), "accepted");
  EXPECT_EQ(verdict(At(31, {4, 8})),
            "op: out lies over x in part; it must be x itself or other memory");
  EXPECT_EQ(verdict(At(0, {8, 4})),
            "op: out lies over x in part; it must be x itself or other memory");
  EXPECT_EQ(SentenceOf(Argument{"op", "out", x}.IsApartFrom(read)),
            "op: out lies over x; it must be other memory");
}

TEST_F(ArgumentTest, ColumnsOfOneMatrixAreApart) {
  Tensor q = At(0, {4, 2, 8});
  Tensor k = At(16, {4, 1, 8});
  q.stride[0] = k.stride[0] = 24;
  EXPECT_FALSE(MayOverlap(q, k));
  EXPECT_FALSE(MayOverlap(k, q));
  k.data = memory_.data() + 15;
  EXPECT_TRUE(MayOverlap(q, k));
  EXPECT_TRUE(MayOverlap(k, q));
  k.data = memory_.data() + 17;  // into the next row of q
  EXPECT_TRUE(MayOverlap(q, k));
  EXPECT_TRUE(MayOverlap(k, q));
}

TEST_F(ArgumentTest, ColumnsOfOneMatrixAreApartInAnyNumberOfSizes) {
  Tensor x = At(0, {2, 3, 8});
  x.stride = {48, 16, 1};
  Tensor out = x;
  out.data = memory_.data() + 8;
  EXPECT_FALSE(MayOverlap(x, out));
  EXPECT_FALSE(MayOverlap(out, x));
  out.data = memory_.data() + 7;
  EXPECT_TRUE(MayOverlap(x, out));
  EXPECT_TRUE(MayOverlap(out, x));
  // Rows that do not join, of different strides for a size of 1, of fewer rows.
  x.stride[0] = out.stride[0] = 100;
  out.data = memory_.data() + 8;
  EXPECT_FALSE(MayOverlap(x, out));
  x.shape[0] = 1;
  x.stride[0] = 7;
  EXPECT_FALSE(MayOverlap(x, out));
  EXPECT_FALSE(MayOverlap(out, x));
  const Tensor row = At(24, {8});
  EXPECT_FALSE(MayOverlap(x, row));
  EXPECT_TRUE(MayOverlap(out, row));
}

TEST_F(ArgumentTest, CachesInOneTensorAreApart) {
  Tensor k = At(0, {5, 16, 2, 4});
  k.stride = {16 * 2 * 8, 2 * 8, 4, 1};
  Tensor v = k;
  v.data = memory_.data() + 8;
  EXPECT_FALSE(MayOverlap(k, v));
  k.stride = v.stride = {16 * 2 * 8, 8, 4, 1};
  EXPECT_TRUE(MayOverlap(k, v));
  v.data = memory_.data() + 128;
  EXPECT_FALSE(MayOverlap(k, v));
  v.data = memory_.data() + 127;
  EXPECT_TRUE(MayOverlap(k, v));
}

// Byte by byte.
bool ShareAByte(const Tensor& a, const Tensor& b) {
  const auto bytes_of = [](const Tensor& tensor) {
    std::set<std::uintptr_t> bytes;
    for (std::int64_t i = 0; i < tensor.Numel(); ++i) {
      std::int64_t rest = i;
      std::int64_t place = 0;
      for (auto d = static_cast<std::size_t>(tensor.rank); d-- > 0;) {
        place += rest % tensor.shape[d] * tensor.stride[d];
        rest /= tensor.shape[d];
      }
      const auto at = reinterpret_cast<std::uintptr_t>(tensor.data) +
                      static_cast<std::uintptr_t>(place * SizeOf(tensor.dtype));
      for (std::uintptr_t byte = 0; byte < static_cast<std::uintptr_t>(SizeOf(tensor.dtype));
           ++byte) {
        bytes.insert(at + byte);
      }
    }
    return bytes;
  };
  const std::set<std::uintptr_t> of_a = bytes_of(a);
  const std::set<std::uintptr_t> of_b = bytes_of(b);
  return std::any_of(of_a.begin(), of_a.end(),
                     [&](std::uintptr_t byte) { return of_b.contains(byte); });
}

TEST_F(ArgumentTest, ViewsThatShareAByteAreNeverSaidToBeApart) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  const auto any_view = [&] {
    Tensor view;
    view.dtype = below(2) == 0 ? DType::kFloat32 : DType::kBfloat16;
    view.data = memory_.data() + below(60);
    view.rank = static_cast<int>(1 + below(4));
    for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
      view.shape[d] = below(4);
      view.stride[d] = (below(2) == 0 ? std::int64_t{1} << below(6) : below(40));
    }
    return view;
  };
  int apart_within = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Tensor a = any_view();
    Tensor b = any_view();
    if (below(2) == 0) b.stride = a.stride;
    const bool said = MayOverlap(a, b);
    ASSERT_EQ(said, MayOverlap(b, a)) << ToString(a) << " and " << ToString(b);
    ASSERT_TRUE(said || !ShareAByte(a, b)) << ToString(a) << " and " << ToString(b);
    if (said || a.Numel() == 0 || b.Numel() == 0) continue;
    const auto* const a_data = static_cast<const std::byte*>(a.data);
    const auto* const b_data = static_cast<const std::byte*>(b.data);
    if (a_data < b_data + b.SpanBytes() && b_data < a_data + a.SpanBytes()) ++apart_within;
  }
  EXPECT_GT(apart_within, 100);  // which its spans alone would not tell
}

}  // namespace
}  // namespace ferry::kernels
