// Tests of how prefill attention divides keys: pages of all sizes and orders, parts of the keys, on
// CPU, simulated device and GPU.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/prefill_problem.h"

namespace ferry::kernels {
namespace {

class AttentionPrefillLayoutTest : public PrefillTest {};
FERRY_INSTANTIATE_OP_TEST(AttentionPrefillLayoutTest);
FERRY_INSTANTIATE_WGMMA_SM90_TEST(AttentionPrefillLayoutTest);

// Pages of 1 token and of others that are no multiples of 16; heads before tokens.
TEST_P(AttentionPrefillLayoutTest, PagesOfAnySizeAndOrderAreRead) {
  for (const std::int64_t page : {1, 3, 16, 24, 512}) {
    for (const bool heads_first : {false, true}) {
      for (const std::int64_t head_size : {64, 128, 256}) {
        PrefillProblem problem(
            {4, 2, head_size, {{9, 9}, {3, 150}, {20, 7}, {0, 3}}, page != 3, page},
            DType::kBfloat16, &random(), {}, {.heads_first = heads_first});
        ExpectRight(&problem, heads_first ? "heads first" : "tokens first");
      }
    }
  }
}

// Boxes of 16 to 128 keys, which are whole pages, parts of pages, and, of pages of 48 and 80, what
// divides both a page and a tile.
TEST_P(AttentionPrefillLayoutTest, OnAGpuLongSequencesInPagesOfAllSizesAreRight) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const std::int64_t page : {1, 16, 32, 48, 64, 80, 128, 192, 512}) {
    for (const std::int64_t head_size : {64, 128, 256}) {
      PrefillProblem problem(
          {4, 2, head_size, {{300, 640}, {1, 777}, {128, 128}, {70, 17}}, page % 32 == 0, page},
          DType::kBfloat16, &random());
      ExpectRight(&problem, "long, in pages");
    }
  }
}

// Groups that fill a tile, that do not divide it, and of one head; few queries behind many keys,
// more queries than keys, and neither. The forms without parts ignore their number.
TEST_P(AttentionPrefillLayoutTest, PartsOfTheKeysAreMerged) {
  for (const int splits : {1, 2, 5}) {
    for (const std::int64_t page : {0, 16}) {
      for (const std::int64_t heads : {4, 5, 1}) {
        PrefillProblem problem(
            {heads, 1, 64, {{16, 150}, {1, 77}, {0, 5}, {7, 5}, {5, 0}}, heads != 5, page},
            DType::kBfloat16, &random());
        ExpectRight(&problem, fmt::format("{} parts", splits), 2, splits);
      }
    }
  }
}

TEST_P(AttentionPrefillLayoutTest, OnAGpuPartsOfManyKeysAreMerged) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const int splits : {1, 3, 16}) {
    for (const std::int64_t head_size : {64, 128, 256}) {
      for (const std::int64_t heads : {8, 6, 2}) {
        PrefillProblem problem({heads,
                                2,
                                head_size,
                                {{16, 2100}, {1, 777}, {31, 1024}},
                                true,
                                heads == 6 ? 0 : 16 * splits},
                               DType::kFloat16, &random());
        ExpectRight(&problem, fmt::format("{} parts of many keys", splits), 2, splits);
      }
      // Too many queries for the heads of a group in one tile.
      PrefillProblem problem({4, 2, head_size, {{200, 900}, {1, 300}}, true, 32}, DType::kBfloat16,
                             &random());
      ExpectRight(&problem, fmt::format("{} parts", splits), 2, splits);
    }
  }
}

TEST_P(AttentionPrefillLayoutTest, AGraphWithPartsGoesByTheLengthsOfItsReplay) {
  PrefillProblem problem({4, 1, 128, {{15, 250}, {4, 100}}, true, 16}, DType::kBfloat16, &random());
  OpBed bed = Bed();
  const Status captured =
      bed.Capture(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed, 2, 3));
  ASSERT_TRUE(captured) << captured.error().ToString();
  for (const std::vector<PrefillLengths>& lengths :
       {std::vector<PrefillLengths>{{15, 250}, {4, 100}}, {{1, 1}, {2, 240}}, {{0, 9}, {5, 128}}}) {
    problem.Deal(&random(), &lengths);
    const Status ran = bed.Replay();
    ASSERT_TRUE(ran) << ran.error().ToString();
    problem.ExpectRight("replayed with parts");
  }
}

}  // namespace
}  // namespace ferry::kernels
