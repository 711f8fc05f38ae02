// Tests each primitive of the compute capability 9.0 form of attention on its own.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ferry/kernels/testing/hopper_ops.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/test_tensor.h"

namespace ferry::kernels {
namespace {

class HopperTest : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (!IsSkipped() && OnGpu() && ComputeMajor() != 9) {
      GTEST_SKIP() << "only GPUs of compute capability 9.0 have these instructions";
    }
  }
  template <class Args>
  void Run(OpBed* bed, const cuda::Kernel& kernel, Status (*cpu)(const Args&), const Args& args) {
    const Status ran = bed->Run(kernel, cpu, args);
    ASSERT_TRUE(ran) << ran.error().ToString();
  }
  // Small enough that sums of products are exact.
  void FillWithIntegers(TestTensor* tensor) {
    std::uniform_int_distribution<int> integer(-8, 8);
    tensor->Fill([&](std::int64_t) { return integer(random()); });
  }

  struct Operands {
    bool b_transposed;
    bool a_in_registers;
  };
  void ExpectExactProducts(const Operands& operands) {
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
      for (const std::int64_t columns : {64, 128}) {
        for (const int steps : {1, 8}) ExpectExactProduct(operands, dtype, columns, steps);
      }
    }
  }

 private:
  void ExpectExactProduct(const Operands& operands, DType dtype, std::int64_t columns, int steps) {
    constexpr std::int64_t kInner = ProductArgs::kInner;
    const bool transposed = operands.b_transposed;
    TestTensor a(dtype, {ProductArgs::kRows, kInner});
    TestTensor b(dtype, transposed ? std::vector<std::int64_t>{columns, kInner}
                                   : std::vector<std::int64_t>{kInner, columns});
    TestTensor c(DType::kFloat32, {ProductArgs::kRows, columns});
    FillWithIntegers(&a);
    FillWithIntegers(&b);
    OpBed bed = Bed();
    const ProductArgs args{.a = bed.View(a),
                           .b = bed.View(b),
                           .c = bed.View(c),
                           .b_transposed = transposed,
                           .a_in_registers = operands.a_in_registers,
                           .steps = steps};
    ASSERT_NO_FATAL_FAILURE(Run(&bed, kProductKernel, ProductCpu, args));
    for (std::int64_t i = 0; i < c.Numel(); ++i) {
      const std::int64_t row = i / columns;
      const std::int64_t column = i % columns;
      double sum = 0;
      for (std::int64_t k = 0; k < 16 * steps; ++k) {
        const std::int64_t in_b = transposed ? column * kInner + k : k * columns + column;
        sum += a.Get(row * kInner + k) * b.Get(in_b);
      }
      ASSERT_EQ(c.Get(i), sum) << fmt::format("{}, {} columns, {} steps: row {} column {}",
                                              NameOf(dtype), columns, steps, row, column);
    }
  }
};
FERRY_INSTANTIATE_OP_TEST(HopperTest);

struct TileCase {
  std::vector<std::int64_t> shape;
  int row;
  std::array<int, 2> outer;
  Extents gap = {};
};

// Within the tensor, across each of its ends, and beside it; of 2, 3 and 4 sizes.
const std::vector<TileCase>& TileCases() {
  static const std::vector<TileCase> cases = {
      {{64, 128}, 0, {}},
      {{200, 128}, 100, {}},
      {{200, 128}, 150, {}},
      {{70, 128}, -20, {}},
      {{70, 128}, 70, {}},
      {{3, 90, 128}, 10, {2, 0}},
      {{3, 90, 128}, 60, {1, 0}},
      {{2, 3, 80, 128}, 30, {1, 1}},
      {{2, 3, 80, 128}, 5, {2, 0}, {64, 16, 8, 0}},
  };
  return cases;
}

// The expected tile, with zeros beyond the end of the tensor.
double InTile(const TestTensor& tensor, const TileCase& one, std::int64_t row,
              std::int64_t column) {
  const std::int64_t rows = one.shape[one.shape.size() - 2];
  if (row < 0 || row >= rows) return 0;
  std::int64_t matrix = one.outer[0];
  if (one.shape.size() == 4) matrix += one.outer[1] * one.shape[1];
  return tensor.Get((matrix * rows + row) * TileArgs::kColumns + column);
}

TEST_P(HopperTest, ATileComesAsTheIndexFunctionSays) {
  for (const TileCase& one : TileCases()) {
    TestTensor tensor(DType::kBfloat16, one.shape, {.gap = one.gap, .skip = 8});
    TestTensor tile(DType::kBfloat16, {TileArgs::kRows, TileArgs::kColumns});
    tensor.FillNormally(&random());
    OpBed bed = Bed();
    const TileArgs args{
        .tensor = bed.View(tensor), .tile = bed.View(tile), .row = one.row, .outer = one.outer};
    ASSERT_NO_FATAL_FAILURE(Run(&bed, kCopyTileKernel, CopyTileCpu, args));
    for (std::int64_t i = 0; i < tile.Numel(); ++i) {
      const std::int64_t row = i / TileArgs::kColumns;
      const std::int64_t column = i % TileArgs::kColumns;
      ASSERT_EQ(tile.Get(i), InTile(tensor, one, one.row + row, column)) << fmt::format(
          "{} sizes, tile from row {}: row {} column {}", one.shape.size(), one.row, row, column);
    }
  }
}

// As attention has q: a token's heads lie side by side, and the rows of a tile are one head's.
TEST_P(HopperTest, ATilesRowsMayLieFurtherApartThanTheTensorsOuterSize) {
  constexpr std::int64_t kTokens = 100;
  constexpr std::int64_t kHeads = 3;
  TestTensor tensor(DType::kFloat16, {kTokens, kHeads, TileArgs::kColumns});
  TestTensor tile(DType::kFloat16, {TileArgs::kRows, TileArgs::kColumns});
  tensor.FillNormally(&random());
  OpBed bed = Bed();
  TileArgs args{.tensor = bed.View(tensor), .tile = bed.View(tile), .row = 60, .outer = {1, 0}};
  std::swap(args.tensor.shape[0], args.tensor.shape[1]);
  std::swap(args.tensor.stride[0], args.tensor.stride[1]);
  ASSERT_NO_FATAL_FAILURE(Run(&bed, kCopyTileKernel, CopyTileCpu, args));
  for (std::int64_t i = 0; i < tile.Numel(); ++i) {
    const std::int64_t token = 60 + i / TileArgs::kColumns;
    const std::int64_t at = (token * kHeads + 1) * TileArgs::kColumns + i % TileArgs::kColumns;
    ASSERT_EQ(tile.Get(i), token < kTokens ? tensor.Get(at) : 0.0) << i;
  }
}

TEST_P(HopperTest, ATileIsStoredWhereItIsInTheTensorAndNowhereElse) {
  for (const TileCase& one : TileCases()) {
    if (one.row < 0) continue;  // what StoreTile() has no place for
    TestTensor tensor(DType::kBfloat16, one.shape, {.gap = one.gap, .skip = 8});
    TestTensor tile(DType::kBfloat16, {TileArgs::kRows, TileArgs::kColumns});
    TestTensor expected(DType::kBfloat16, one.shape);
    tensor.Poison();
    expected.Poison();
    tile.FillNormally(&random());
    OpBed cpu(nullptr);
    OpBed bed = Bed();
    const auto args_on = [&](OpBed* on, TestTensor* into) {
      return TileArgs{.tensor = on->View(*into),
                      .tile = on->View(tile),
                      .stores = true,
                      .row = one.row,
                      .outer = one.outer};
    };
    const std::string name = fmt::format("{} sizes, tile to row {}", one.shape.size(), one.row);
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(Run(&bed, kCopyTileKernel, CopyTileCpu, args_on(&bed, &tensor)));
    ASSERT_TRUE(CopyTileCpu(args_on(&cpu, &expected)));
    tensor.ExpectGapsUntouched(name);
    for (std::int64_t i = 0; i < tensor.Numel(); ++i) {
      if (std::isnan(expected.Get(i)) && std::isnan(tensor.Get(i))) continue;
      ASSERT_EQ(tensor.Get(i), expected.Get(i)) << name << ": " << i;
    }
  }
}

// One instruction, then eight of them, of each type and number of columns.
TEST_P(HopperTest, AProductOfIntegersIsExactWithBothInSharedMemoryAndBTransposed) {
  ExpectExactProducts({.b_transposed = true, .a_in_registers = false});
}
TEST_P(HopperTest, AProductOfIntegersIsExactWithBothInSharedMemoryAndBAsItIs) {
  ExpectExactProducts({.b_transposed = false, .a_in_registers = false});
}
TEST_P(HopperTest, AProductOfIntegersIsExactWithAInRegistersAndBTransposed) {
  ExpectExactProducts({.b_transposed = true, .a_in_registers = true});
}
TEST_P(HopperTest, AProductOfIntegersIsExactWithAInRegistersAndBAsItIs) {
  ExpectExactProducts({.b_transposed = false, .a_in_registers = true});
}

TEST_P(HopperTest, ARingOfTilesBringsEachOnceAndInOrder) {
  for (const std::int64_t tiles : {1, 2, 3, 9}) {
    TestTensor from(DType::kBfloat16, {RingArgs::kRows * tiles, RingArgs::kColumns});
    TestTensor to(DType::kBfloat16, {RingArgs::kRows * tiles, RingArgs::kColumns});
    from.FillNormally(&random());
    OpBed bed = Bed();
    const RingArgs args{.from = bed.View(from), .to = bed.View(to)};
    ASSERT_NO_FATAL_FAILURE(Run(&bed, kCopyByRingKernel, CopyByRingCpu, args));
    ASSERT_EQ(from.Values(), to.Values()) << tiles << " tiles";
  }
}

}  // namespace
}  // namespace ferry::kernels
