// Tests of the fused norm, rotation and cache store on CPU, simulated device and GPU.

#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numeric>
#include <string>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rope/rope.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

constexpr float kQkEps = 1e-6F;
constexpr std::int64_t kQkPositions = 200;
constexpr std::int64_t kQkBlocks = 4;
constexpr std::int64_t kQkBlock = 16;

struct QkCase {
  DType dtype = DType::kBfloat16;
  DType cache_dtype = DType::kBfloat16;
  std::int64_t tokens = 6;
  std::int64_t q_heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 128;
  std::int64_t rotated = 128;
  TestLayout in = {};
  TestLayout out = {};
  TestLayout cache = {};
  bool in_place = false;
  bool with_k_out = true;
  bool with_cache = true;
  DType index_dtype = DType::kInt64;
  DType slot_dtype = DType::kInt32;
  DType table_dtype = DType::kFloat32;
  bool is_neox = true;
};

class QkTensors {
 public:
  explicit QkTensors(const QkCase& given)
      : given_(given),
        qkv_(given.dtype, {given.tokens, Heads() * given.head_dim}, given.in),
        q_weight_(given.dtype, {given.head_dim}),
        k_weight_(given.dtype, {given.head_dim}),
        positions_(given.index_dtype, {given.tokens}),
        table_(given.table_dtype, {kQkPositions, given.rotated}),
        q_out_(given.dtype, {given.tokens, given.q_heads, given.head_dim}, given.out),
        k_out_(given.dtype, {given.tokens, given.kv_heads, given.head_dim}, given.out),
        k_cache_(given.cache_dtype, {kQkBlocks, kQkBlock, given.kv_heads, given.head_dim},
                 given.cache),
        v_cache_(given.cache_dtype, {kQkBlocks, kQkBlock, given.kv_heads, given.head_dim},
                 given.cache),
        slots_(given.slot_dtype, {given.tokens}) {
    table_.Fill([&](std::int64_t i) {
      const double angle = Angle(i / given_.rotated, i % (given_.rotated / 2));
      return i % given_.rotated < given_.rotated / 2 ? std::cos(angle) : std::sin(angle);
    });
  }

  void FillAnew(std::mt19937_64* random) {
    qkv_.FillNormally(random, 0.2, 3);
    q_weight_.FillNormally(random, 1, 0.3);
    k_weight_.FillNormally(random, 2, 0.3);
    before_ = qkv_.Values();
    std::uniform_int_distribution<std::int64_t> position(0, kQkPositions - 1);
    positions_.Fill([&](std::int64_t) { return static_cast<double>(position(*random)); });
    std::vector<std::int32_t> free(static_cast<std::size_t>(kQkBlocks * kQkBlock));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), *random);
    slots_.Fill([&](std::int64_t i) {
      return i % 4 == 2 ? -1.0 : free[static_cast<std::size_t>(i) % free.size()];
    });
    q_out_.Poison();
    k_out_.Poison();
    for (TestTensor* cache : {&k_cache_, &v_cache_}) cache->Fill([](std::int64_t) { return 5; });
  }

  QkNormRopeStoreArgs Args(OpBed* bed) {
    QkNormRopeStoreArgs args;
    args.qkv = bed->View(qkv_);
    args.q_heads = given_.q_heads;
    args.kv_heads = given_.kv_heads;
    args.q_weight = bed->View(q_weight_);
    args.k_weight = bed->View(k_weight_);
    args.eps = kQkEps;
    args.is_neox = given_.is_neox;
    args.positions = bed->View(positions_);
    args.cos_sin_cache = bed->View(table_);
    args.q_out = given_.in_place ? Part(args.qkv, 0, given_.q_heads) : bed->View(q_out_);
    if (given_.with_k_out) {
      args.k_out =
          given_.in_place ? Part(args.qkv, given_.q_heads, given_.kv_heads) : bed->View(k_out_);
    }
    if (given_.with_cache) {
      args.k_cache = bed->View(k_cache_);
      args.v_cache = bed->View(v_cache_);
      args.slots = bed->View(slots_);
      args.k_scale = 0.02F;
      args.v_scale = 0.05F;
    }
    return args;
  }

  // Small whole numbers, so that sums of squares are exact in any order.
  void FillWithWholeNumbers(std::mt19937_64* random) {
    FillAnew(random);
    std::uniform_int_distribution<int> number(-9, 9);
    qkv_.Fill([&](std::int64_t) { return number(*random); });
    before_ = qkv_.Values();
  }
  // Does by three ops, one after the other, what Args() are for, and compares to the last bit.
  void ExpectWhatThreeOpsGive(OpBed* bed) {
    const QkNormRopeStoreArgs fused = Args(bed);
    TestTensor q(given_.dtype, {given_.tokens, given_.q_heads, given_.head_dim});
    TestTensor k(given_.dtype, {given_.tokens, given_.kv_heads, given_.head_dim});
    const std::vector<std::int64_t> cache = {kQkBlocks, kQkBlock, given_.kv_heads, given_.head_dim};
    TestTensor k_cache(given_.cache_dtype, cache);
    TestTensor v_cache(given_.cache_dtype, cache);
    for (TestTensor* tensor : {&k_cache, &v_cache}) tensor->Fill([](std::int64_t) { return 5; });
    const Tensor q_view = bed->View(q);
    const Tensor k_view = bed->View(k);
    const RmsNormArgs norm_q{Part(fused.qkv, 0, given_.q_heads), fused.q_weight, q_view, kQkEps};
    const RmsNormArgs norm_k{Part(fused.qkv, given_.q_heads, given_.kv_heads), fused.k_weight,
                             k_view, kQkEps};
    const RopeArgs rope{q_view,        k_view, q_view, k_view, fused.positions, fused.cos_sin_cache,
                        given_.is_neox};
    const StoreKvCacheArgs store{k_view,
                                 Part(fused.qkv, given_.q_heads + given_.kv_heads, given_.kv_heads),
                                 bed->View(k_cache),
                                 bed->View(v_cache),
                                 fused.slots,
                                 fused.k_scale,
                                 fused.v_scale};
    for (const Status& ran :
         {bed->Run(kRmsNormKernel, RmsNormCpu, norm_q),
          bed->Run(kRmsNormKernel, RmsNormCpu, norm_k), bed->Run(kRopeKernel, RopeCpu, rope),
          bed->Run(kStoreKvCacheKernel, StoreKvCacheCpu, store)}) {
      ASSERT_TRUE(ran) << ran.error().ToString();
    }
    const std::string name = std::string(NameOf(given_.dtype)) + " " + ToString(q.view());
    EXPECT_EQ(q_out_.Values(), q.Values()) << name;
    EXPECT_EQ(k_out_.Values(), k.Values()) << name;
    EXPECT_EQ(k_cache_.Values(), k_cache.Values()) << name;
    EXPECT_EQ(v_cache_.Values(), v_cache.Values()) << name;
  }

  TestTensor& positions() { return positions_; }
  TestTensor& slots() { return slots_; }
  TestTensor& q_out() { return q_out_; }

  // But for a token that could not be `stored`, or of which nothing could be `done`.
  void ExpectRight(std::int64_t not_stored = -1, std::int64_t not_done = -1) {
    const std::string name =
        "qk_norm_rope_store, " + ToString(qkv_.view()) + (given_.in_place ? " in place" : "");
    not_done_ = not_done;
    const std::vector<double> q = HeadsNow(0, given_.q_heads, q_out_, true);
    ExpectHeads(q, 0, given_.q_heads, q_weight_, name + ", q");
    std::vector<double> k(0);
    if (given_.with_k_out) {
      k = HeadsNow(given_.q_heads, given_.kv_heads, k_out_, true);
      ExpectHeads(k, given_.q_heads, given_.kv_heads, k_weight_, name + ", k");
    }
    if (given_.with_cache) {
      const std::vector<double> v =
          HeadsNow(given_.q_heads + given_.kv_heads, given_.kv_heads, k_out_, false);
      const std::int64_t without = std::max(not_stored, not_done);
      ExpectCache(v, v_cache_, 0.05F, without);
      if (given_.with_k_out) ExpectCache(k, k_cache_, 0.02F, without);
    }
    for (const TestTensor* tensor : {&qkv_, &q_weight_, &k_weight_, &positions_, &table_, &q_out_,
                                     &k_out_, &k_cache_, &v_cache_, &slots_}) {
      tensor->ExpectGapsUntouched(name);
    }
  }
  std::vector<double> KeysInCache() const { return k_cache_.Values(); }

 private:
  std::int64_t Heads() const { return given_.q_heads + 2 * given_.kv_heads; }
  double Angle(std::int64_t position, std::int64_t pair) const {
    return static_cast<double>(position) *
           std::pow(1e4, -2.0 * static_cast<double>(pair) / static_cast<double>(given_.rotated));
  }
  Tensor Part(Tensor qkv, std::int64_t first, std::int64_t heads) const {
    qkv.data = static_cast<std::byte*>(qkv.data) + first * given_.head_dim * SizeOf(qkv.dtype);
    qkv.rank = 3;
    qkv.shape = {given_.tokens, heads, given_.head_dim};
    qkv.stride = {qkv.stride[0], given_.head_dim, 1};
    return qkv;
  }

  // The heads in qkv, before the call or, if the op works in place, after it.
  std::vector<double> HeadsNow(std::int64_t first, std::int64_t heads, const TestTensor& out,
                               bool written) const {
    if (written && !given_.in_place) return out.Values();
    std::vector<double> values;
    const std::vector<double> now = qkv_.Values();
    for (std::int64_t token = 0; token < given_.tokens; ++token) {
      const std::int64_t at = (token * Heads() + first) * given_.head_dim;
      values.insert(values.end(), now.begin() + at, now.begin() + at + heads * given_.head_dim);
    }
    return values;
  }

  void ExpectHeads(const std::vector<double>& got, std::int64_t first, std::int64_t heads,
                   const TestTensor& weight, const std::string& name) {
    Elements elements;
    const auto head_dim = static_cast<std::size_t>(given_.head_dim);
    for (std::int64_t token = 0; token < given_.tokens; ++token) {
      const auto position = static_cast<std::int64_t>(positions_.Get(token));
      for (std::int64_t head = 0; head < heads && token != not_done_; ++head) {
        const auto at = static_cast<std::size_t>((token * Heads() + first + head)) * head_dim;
        const std::vector<double> x(before_.begin() + static_cast<std::ptrdiff_t>(at),
                                    before_.begin() + static_cast<std::ptrdiff_t>(at + head_dim));
        const auto done = static_cast<std::ptrdiff_t>(token * heads + head) *
                          static_cast<std::ptrdiff_t>(head_dim);
        elements.got.insert(elements.got.end(), got.begin() + done,
                            got.begin() + done + static_cast<std::ptrdiff_t>(head_dim));
        AppendHead(x, position, weight, &elements);
      }
    }
    // A norm's two roundings come before the rotation, which is a sum of two of its results.
    ExpectEachRight(elements, {.of_results = 1, .of_terms = 2}, given_.dtype, name);
  }

  void AppendHead(const std::vector<double>& x, std::int64_t position, const TestTensor& weight,
                  Elements* elements) const {
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    const double mean = squares / static_cast<double>(x.size());
    const double scale = 1 / std::sqrt(mean + double{kQkEps});
    std::vector<double> right(x.size());
    std::vector<double> terms(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      right[i] = x[i] * scale * weight.Get(static_cast<std::int64_t>(i));
      terms[i] = std::fabs(right[i]);
    }
    const auto half = static_cast<std::size_t>(given_.rotated / 2);
    for (std::size_t pair = 0; pair < half; ++pair) {
      const std::size_t i = given_.is_neox ? pair : 2 * pair;
      const std::size_t j = given_.is_neox ? half + pair : i + 1;
      const double angle = Angle(position, static_cast<std::int64_t>(pair));
      const std::complex<double> turned =
          std::complex<double>(right[i], right[j]) * std::polar(1.0, angle);
      right[i] = turned.real();
      right[j] = turned.imag();
      const double cos = std::fabs(std::cos(angle));
      const double sin = std::fabs(std::sin(angle));
      const double low = terms[i];
      const double high = terms[j];
      terms[i] = low * cos + high * sin;
      terms[j] = high * cos + low * sin;
    }
    elements->right.insert(elements->right.end(), right.begin(), right.end());
    elements->terms.insert(elements->terms.end(), terms.begin(), terms.end());
  }

  // The stored values equal, to the last bit, those that attention would read elsewhere.
  void ExpectCache(const std::vector<double>& heads, const TestTensor& cache, float scale,
                   std::int64_t without) {
    const std::int64_t cols = given_.kv_heads * given_.head_dim;
    std::vector<double> expected(static_cast<std::size_t>(cache.Numel()), 5);
    const float inverse = 1 / scale;
    for (std::int64_t token = 0; token < given_.tokens; ++token) {
      const auto slot = static_cast<std::int64_t>(slots_.Get(token));
      if (slot < 0 || token == without) continue;
      for (std::int64_t i = 0; i < cols; ++i) {
        const auto value = static_cast<float>(heads[static_cast<std::size_t>(token * cols + i)]);
        expected[static_cast<std::size_t>(slot * cols + i)] =
            given_.cache_dtype == DType::kFloat8E4m3 ? FromE4m3(ToE4m3(value * inverse)) : value;
      }
    }
    const std::vector<double> got = cache.Values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], expected[i]) << "element " << i << " of " << ToString(cache.view());
    }
  }

  const QkCase given_;
  TestTensor qkv_;
  TestTensor q_weight_;
  TestTensor k_weight_;
  TestTensor positions_;
  TestTensor table_;
  TestTensor q_out_;
  TestTensor k_out_;
  TestTensor k_cache_;
  TestTensor v_cache_;
  TestTensor slots_;
  std::vector<double> before_;
  std::int64_t not_done_ = -1;
};

class QkNormRopeStoreTest : public OpTest {
 protected:
  void Expect(const QkCase& given) {
    QkTensors tensors(given);
    ExpectRightResults(&tensors, kQkNormRopeStoreKernel, QkNormRopeStoreCpu);
  }
};

TEST_P(QkNormRopeStoreTest, EveryHeadSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const DType cache : {dtype, DType::kFloat8E4m3}) {
      for (const std::int64_t head_dim : {2, 16, 64, 80, 100, 128, 256, 512, 514}) {
        Expect({.dtype = dtype, .cache_dtype = cache, .head_dim = head_dim, .rotated = head_dim});
      }
    }
  }
}

TEST_P(QkNormRopeStoreTest, PairsOfNeighboursAreRightAndWhatTheThreeOpsGive) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t q_heads : {3, 4, 70}) {
      for (const std::int64_t head_dim : {2, 64, 100, 128}) {
        QkTensors tensors({.dtype = dtype,
                           .cache_dtype = dtype,
                           .q_heads = q_heads,
                           .head_dim = head_dim,
                           .rotated = head_dim,
                           .is_neox = false});
        tensors.FillWithWholeNumbers(&random());
        OpBed bed = Bed();
        const Status ran = bed.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, tensors.Args(&bed));
        ASSERT_TRUE(ran) << ran.error().ToString();
        tensors.ExpectRight();
        tensors.ExpectWhatThreeOpsGive(&bed);
      }
    }
    Expect({.dtype = dtype, .cache_dtype = DType::kFloat8E4m3, .is_neox = false});
    Expect({.dtype = dtype, .cache_dtype = dtype, .head_dim = 96, .rotated = 64, .is_neox = false});
  }
}

TEST_P(QkNormRopeStoreTest, AnyNumberOfHeadsIsRightInPlaceToo) {
  for (const bool in_place : {false, true}) {
    for (const std::int64_t kv_heads : {1, 3, 8}) {
      Expect({.tokens = 40, .q_heads = 5 * kv_heads, .kv_heads = kv_heads, .in_place = in_place});
    }
    Expect({.q_heads = 32, .kv_heads = 8, .head_dim = 64, .rotated = 64, .in_place = in_place});
    Expect({.q_heads = 3, .kv_heads = 1, .head_dim = 70, .rotated = 70, .in_place = in_place});
  }
  Expect({.q_heads = 3, .kv_heads = 0});
  Expect({.q_heads = 0, .kv_heads = 2});
}

TEST_P(QkNormRopeStoreTest, WhatIsNotRotatedIsNormalised) {
  for (const DType dtype : kFloatTypes) {
    for (const bool in_place : {false, true}) {
      Expect({.dtype = dtype,
              .cache_dtype = dtype,
              .head_dim = 96,
              .rotated = 64,
              .in_place = in_place});
    }
  }
}

TEST_P(QkNormRopeStoreTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    for (const bool in_place : {false, true}) {
      Expect({.dtype = dtype,
              .cache_dtype = dtype,
              .in = {.gap = {64, 0}, .skip = 32},
              .out = {.gap = {32, 64, 0}, .skip = 16},
              .cache = {.gap = {2048, 64, 0, 0}, .skip = 16},
              .in_place = in_place});
      Expect({.dtype = dtype,
              .cache_dtype = DType::kFloat8E4m3,
              .in = {.gap = {3, 0}, .skip = 1},
              .out = {.gap = {5, 7, 0}, .skip = 3},
              .cache = {.gap = {9, 1, 0, 0}, .skip = 5},
              .in_place = in_place});
      for (const DType cache : {dtype, DType::kFloat8E4m3}) {
        for (const std::int64_t skip : {0, 3}) {  // in words, and element by element
          Expect({.dtype = dtype,
                  .cache_dtype = cache,
                  .cache = {.skip = skip, .heads_first = true},
                  .in_place = in_place});
        }
      }
    }
  }
}

TEST_P(QkNormRopeStoreTest, EveryTypeOfPositionsSlotsAndAnglesGivesWhatTheThreeOpsGive) {
  for (const DType dtype : kFloatTypes) {
    for (const DType table : kFloatTypes) {
      for (const std::int64_t q_heads : {3, 4, 70}) {
        QkTensors tensors({.dtype = dtype,
                           .cache_dtype = dtype,
                           .q_heads = q_heads,
                           .index_dtype = DType::kInt32,
                           .slot_dtype = DType::kInt64,
                           .table_dtype = table});
        tensors.FillWithWholeNumbers(&random());
        OpBed bed = Bed();
        const Status ran = bed.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, tensors.Args(&bed));
        ASSERT_TRUE(ran) << ran.error().ToString();
        tensors.ExpectWhatThreeOpsGive(&bed);
      }
    }
  }
}

TEST_P(QkNormRopeStoreTest, ResultsAreThoseOfTheThreeOpsToTheLastBit) {
  for (const DType dtype : kFloatTypes) {
    for (const DType cache : {dtype, DType::kFloat8E4m3}) {
      for (const std::int64_t head_dim : {64, 80, 100, 128}) {
        QkTensors tensors({.dtype = dtype,
                           .cache_dtype = cache,
                           .tokens = 20,
                           .head_dim = head_dim,
                           .rotated = head_dim});
        tensors.FillWithWholeNumbers(&random());
        OpBed bed = Bed();
        const Status ran = bed.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, tensors.Args(&bed));
        ASSERT_TRUE(ran) << ran.error().ToString();
        tensors.ExpectWhatThreeOpsGive(&bed);
      }
    }
  }
}

// As in a first run of a model, whose caches are not there yet; and as in decoding, where nobody
// reads k but from the cache.
TEST_P(QkNormRopeStoreTest, CachesAndKeysMayBeLeftOut) {
  Expect({.with_cache = false});
  Expect({.with_k_out = false, .with_cache = false});
  QkTensors both({});
  QkTensors only_stored({.with_k_out = false});
  std::mt19937_64 same = random();
  both.FillAnew(&random());
  only_stored.FillAnew(&same);
  OpBed first = Bed();
  OpBed second = Bed();
  ASSERT_TRUE(first.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, both.Args(&first)));
  ASSERT_TRUE(second.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, only_stored.Args(&second)));
  both.ExpectRight();
  only_stored.ExpectRight();
  EXPECT_EQ(both.KeysInCache(), only_stored.KeysInCache());
}

TEST_P(QkNormRopeStoreTest, EmptyTensorsAreLeftAlone) { Expect({.tokens = 0}); }

TEST_P(QkNormRopeStoreTest, APositionBeyondTheTableIsAnErrorOnTheCpuAndSkippedOnGpus) {
  QkTensors tensors({});
  tensors.FillAnew(&random());
  tensors.positions().Set(3, kQkPositions);
  OpBed bed = Bed();
  const Status ran = bed.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, tensors.Args(&bed));
  if (OnGpu()) {
    ASSERT_TRUE(ran) << ran.error().ToString();
    tensors.ExpectRight(-1, 3);
    EXPECT_TRUE(std::isnan(tensors.q_out().Get(3 * 4 * 128)));  // still poison
    return;
  }
  ASSERT_FALSE(ran);
  if (!OnCpu()) return;  // the simulated device is lost, as after an illegal access
  EXPECT_EQ(ran.error().message(),
            "qk_norm_rope_store: positions[3] is 200; cos_sin_cache has 0 to 199");
}

TEST_P(QkNormRopeStoreTest, ASlotBeyondTheCachesIsAnErrorOnTheCpuAndNotStoredOnGpus) {
  QkTensors tensors({});
  tensors.FillAnew(&random());
  tensors.slots().Set(1, 64);
  OpBed bed = Bed();
  const Status ran = bed.Run(kQkNormRopeStoreKernel, QkNormRopeStoreCpu, tensors.Args(&bed));
  if (OnGpu()) {
    ASSERT_TRUE(ran) << ran.error().ToString();
    tensors.ExpectRight(1);
    return;
  }
  ASSERT_FALSE(ran);
  if (!OnCpu()) return;  // the simulated device is lost, as after an illegal access
  EXPECT_THAT(ran.error().message(),
              HasSubstr("qk_norm_rope_store: slots[1] is 64; the caches have 64 slots"));
}

TEST_P(QkNormRopeStoreTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  QkTensors tensors({.tokens = 17, .q_heads = 16, .kv_heads = 8});
  ExpectRightReplays(&tensors, kQkNormRopeStoreKernel, QkNormRopeStoreCpu);
}

FERRY_INSTANTIATE_OP_TEST(QkNormRopeStoreTest);

}  // namespace
}  // namespace ferry::kernels
