// Benchmark cases of the attention ops.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "ferry/kernels/attention_decode/attention_decode.h"
#include "ferry/kernels/attention_merge/attention_merge.h"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "tools/bench/kernels/kernel_case.h"

namespace ferry::tools {
namespace {

using kernels::DType;
using kernels::Tensor;

constexpr DType kAttentionType = DType::kBfloat16;
constexpr std::int64_t kAttentionElement = 2;

struct AttentionOfCase {
  std::int64_t batch;
  std::int64_t tokens;  // of each sequence
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
};

// The bound for the weights, which are rounded to the format before they are multiplied by values:
// see TermsOfAttention().
constexpr double kWeightRoundings = 6;

KernelCase NewAttentionCase(const char* op, const AttentionOfCase& of) {
  KernelCase one;
  one.op = op;
  one.dtype = kAttentionType;
  one.sizes = {{"batch", of.batch},
               {"tokens", of.tokens},
               {"heads", of.heads},
               {"kv_heads", of.kv_heads},
               {"head_size", of.head_size}};
  one.units_checked = 1;
  one.roundings.of_terms = kWeightRoundings;
  return one;
}

float AttentionScale(const AttentionOfCase& of) {
  return 1 / std::sqrt(static_cast<float>(of.head_size));
}

// The root of the sum of squares of p v: weights of near 1 / tokens each, times values in [-1, 1).
// Rounded to the format as they are multiplied, they are wrong by chance, each by itself, and six
// times that is beyond all chance (docs/kernels/accuracy.md).
double TermsOfAttention(std::int64_t tokens) { return 1 / std::sqrt(static_cast<double>(tokens)); }

// Keys and values of all tokens, q and out.
std::uint64_t AttentionBytes(const AttentionOfCase& of, std::int64_t queries,
                             std::int64_t key_element) {
  const std::int64_t kv = 2 * of.batch * of.tokens * of.kv_heads * of.head_size;
  const std::int64_t q = 2 * of.batch * queries * of.heads * of.head_size;
  return static_cast<std::uint64_t>(kv * key_element + q * kAttentionElement);
}

// Pages in any order, as they are after a while.
std::vector<std::int32_t> ShuffledPages(std::int64_t count) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  return pages;
}

// What a case of decode attention is over, and how it is looked at.
struct DecodeWay {
  std::int64_t page;
  bool e4m3 = false;        // the caches
  std::int64_t window = 0;  // 0: none
};

KernelCase DecodeCase(const AttentionOfCase& of, const DecodeWay& way,
                      const cuda::DeviceFacts& facts) {
  KernelCase one = NewAttentionCase("attention_decode", of);
  const std::int64_t page = way.page;
  const DType cache = way.e4m3 ? DType::kFloat8E4m3 : kAttentionType;
  if (way.e4m3) one.variant = "e4m3 caches";
  if (way.window > 0) one.variant = fmt::format("window of {}", way.window);
  one.sizes.push_back({"page", page});
  const std::int64_t columns = (of.tokens + page - 1) / page;
  const std::int64_t pages = of.batch * columns;
  // A window may begin and end within a step of 64 tokens.
  const std::int64_t seen =
      way.window > 0 ? std::min(way.window + 64, columns * page) : columns * page;
  const kernels::DecodeShape shape{of.batch, of.heads, of.kv_heads, of.head_size, seen};
  const kernels::DecodePlan plan = kernels::PlanDecode(shape, facts);
  const std::int64_t floats = kernels::DecodeWorkspace(shape, plan.splits);
  const auto q = one.AddNumbers(kAttentionType, {of.batch, of.heads, of.head_size});
  const auto k = one.AddNumbers(cache, {pages, page, of.kv_heads, of.head_size});
  const auto v = one.AddNumbers(cache, {pages, page, of.kv_heads, of.head_size});
  const auto tables = one.AddTable(DType::kInt32, {of.batch, columns}, ShuffledPages(pages));
  const auto lengths =
      one.AddTable(DType::kInt32, {of.batch},
                   std::vector<std::int32_t>(static_cast<std::size_t>(of.batch),
                                             static_cast<std::int32_t>(of.tokens)));
  const auto out = one.AddResults(kAttentionType, {of.batch, of.heads, of.head_size});
  const auto workspace = one.AddScratch(DType::kFloat32, {std::max<std::int64_t>(floats, 4)});
  one.units = of.batch;
  AttentionOfCase read = of;
  if (way.window > 0) read.tokens = std::min(of.tokens, way.window);
  one.terms = [read](std::int64_t) { return TermsOfAttention(read.tokens); };
  one.bytes = AttentionBytes(read, 1, kernels::SizeOf(cache));
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::AttentionDecodeArgs args;
    args.q = to.Of(q, at);
    args.k_cache = k.At(at);
    args.v_cache = v.At(at);
    args.window = way.window;
    args.block_tables = to.Of(tables, at);
    args.context_lens = to.Of(lengths, at);
    args.out = to.Of(out, at);
    if (floats > 0 && !to.on_cpu()) args.workspace = workspace.At(at);
    args.scale = AttentionScale(of);
    if (!to.on_cpu()) args.plan = plan;
    return to.Put(kernels::kAttentionDecodeKernel, args);
  };
  return one;
}

// How prefill is told to do it.
struct PrefillWay {
  const char* name;
  int stages;
  kernels::PrefillForm form;
  std::int64_t page = 0;     // 0: keys are not paged
  std::int64_t queries = 0;  // of each sequence, its last tokens; 0: all
};
constexpr PrefillWay kPrefillWays[] = {{"1 stage", 1, kernels::PrefillForm::kCpAsync},
                                       {"2 stages", 2, kernels::PrefillForm::kCpAsync},
                                       {"3 stages", 3, kernels::PrefillForm::kCpAsync},
                                       {"wgmma", 2, kernels::PrefillForm::kWgmmaSm90}};
constexpr std::int64_t kPrefillPages[] = {16, 32, 64, 256};

std::vector<std::int32_t> Boundaries(std::int64_t batch, std::int64_t each) {
  std::vector<std::int32_t> boundaries;
  for (std::int64_t i = 0; i <= batch; ++i) {
    boundaries.push_back(static_cast<std::int32_t>(i * each));
  }
  return boundaries;
}

std::int64_t QueriesOfEach(const AttentionOfCase& of, const PrefillWay& way) {
  return way.queries > 0 ? way.queries : of.tokens;
}

// Keys that a query sees.
std::int64_t SeenBy(const AttentionOfCase& of, const PrefillWay& way, std::int64_t query) {
  const std::int64_t each = QueriesOfEach(of, way);
  return of.tokens - each + query % each + 1;
}

// The query that is meant, as a sequence of its own with the keys up to it: all that it sees.
Status PutOneQuery(const KernelStream& to, const AttentionOfCase& of, const PrefillWay& way,
                   kernels::AttentionPrefillArgs args) {
  const auto part = [](Tensor tensor, std::int64_t first, std::int64_t count) {
    return KernelStream{.units = {first, count}}.RowsOf(tensor);
  };
  const std::int64_t query = to.units.first;
  const std::int64_t sequence = query / QueriesOfEach(of, way);
  const std::int64_t keys = SeenBy(of, way, query);
  std::array<std::int32_t, 2> queries_end{0, 1};
  std::array<std::int32_t, 2> keys_end{0, static_cast<std::int32_t>(keys)};
  args.q = part(args.q, query, 1);
  args.out = part(args.out, query, 1);
  if (args.block_tables.none()) {
    args.k = part(args.k, sequence * of.tokens, keys);
    args.v = part(args.v, sequence * of.tokens, keys);
  } else {
    args.block_tables = part(args.block_tables, sequence, 1);
  }
  args.cu_seqlens_q = Tensor::Contiguous(queries_end.data(), DType::kInt32, {2});
  args.cu_seqlens_k = Tensor::Contiguous(keys_end.data(), DType::kInt32, {2});
  args.max_seqlen_q = 1;
  return to.Put(kernels::kAttentionPrefillKernel, args);
}

// Causal. Two products of 2 * tokens * tokens * head_size for each head, of which the half behind
// the diagonal does not count, as is the custom. Few queries are limited by what is read.
KernelCase PrefillCase(const AttentionOfCase& of, const PrefillWay& way,
                       const cuda::DeviceFacts& facts) {
  KernelCase one = NewAttentionCase("attention_prefill", of);
  one.variant = way.name;
  if (way.page > 0) one.sizes.push_back({"page", way.page});
  if (way.queries > 0) one.sizes.push_back({"queries", way.queries});
  // As the newest form, likeliest to fault, after which the device does nothing more.
  one.comes_last = way.form == kernels::PrefillForm::kWgmmaSm90;
  const std::int64_t each = QueriesOfEach(of, way);
  const std::int64_t queries = of.batch * each;
  const std::int64_t keys = of.batch * of.tokens;
  const std::int64_t columns = way.page > 0 ? of.tokens / way.page : 0;
  const std::int64_t pages = of.batch * columns;
  const kernels::PrefillWork work{of.batch,    queries,      each,     of.heads,
                                  of.kv_heads, of.head_size, of.tokens};
  const int splits = way.queries > 0 ? kernels::PlanPrefill(work, facts) : 1;
  const std::int64_t floats = kernels::PrefillWorkspace(work, splits);
  const auto q = one.AddNumbers(kAttentionType, {queries, of.heads, of.head_size});
  const auto add_keys = [&] {
    return way.page > 0
               ? one.AddNumbers(kAttentionType, {pages, way.page, of.kv_heads, of.head_size})
               : one.AddNumbers(kAttentionType, {keys, of.kv_heads, of.head_size});
  };
  const auto k = add_keys();
  const auto v = add_keys();
  const auto query_ends = one.AddTable(DType::kInt32, {of.batch + 1}, Boundaries(of.batch, each));
  const auto key_ends =
      one.AddTable(DType::kInt32, {of.batch + 1}, Boundaries(of.batch, of.tokens));
  const auto tables = one.AddTable(DType::kInt32, {of.batch, columns},
                                   ShuffledPages(std::max<std::int64_t>(pages, 1)));
  const auto out = one.AddResults(kAttentionType, {queries, of.heads, of.head_size});
  const auto workspace = one.AddScratch(DType::kFloat32, {std::max<std::int64_t>(floats, 4)});
  one.bytes = AttentionBytes(of, each, kAttentionElement);
  if (way.queries == 0) {
    one.flops = 2.0 * static_cast<double>(queries) * static_cast<double>(of.tokens) *
                static_cast<double>(of.heads * of.head_size);
  }
  one.units = queries;
  one.terms = [=](std::int64_t query) { return TermsOfAttention(SeenBy(of, way, query)); };
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::AttentionPrefillArgs args;
    args.q = q.At(at);
    args.k = k.At(at);
    args.v = v.At(at);
    if (way.page > 0) args.block_tables = tables.At(at);
    args.cu_seqlens_q = query_ends.At(at);
    args.cu_seqlens_k = key_ends.At(at);
    args.out = out.At(at);
    args.max_seqlen_q = each;
    args.scale = AttentionScale(of);
    args.stages = way.stages;
    args.form = way.form;
    if (to.on_cpu()) return PutOneQuery(to, of, way, args);
    args.splits = splits;
    if (floats > 0) args.workspace = workspace.At(at);
    return to.Put(kernels::kAttentionPrefillKernel, args);
  };
  return one;
}

// 3 tensors of outputs, and their lse: both parts are read, the result is written.
KernelCase MergeCase(const AttentionOfCase& of) {
  KernelCase one;
  one.op = "merge_attention_states";
  one.dtype = kAttentionType;
  one.sizes = {{"tokens", of.tokens}, {"heads", of.heads}, {"head_size", of.head_size}};
  one.units = of.tokens;
  one.terms = [](std::int64_t) { return 2.0; };
  const std::int64_t elements = of.tokens * of.heads * of.head_size;
  const auto out_a = one.AddNumbers(kAttentionType, {of.tokens, of.heads, of.head_size});
  const auto lse_a = one.AddNumbers(DType::kFloat32, {of.tokens, of.heads});
  const auto out_b = one.AddNumbers(kAttentionType, {of.tokens, of.heads, of.head_size});
  const auto lse_b = one.AddNumbers(DType::kFloat32, {of.tokens, of.heads});
  const auto out = one.AddResults(kAttentionType, {of.tokens, of.heads, of.head_size});
  const auto lse = one.AddResults(DType::kFloat32, {of.tokens, of.heads});
  one.bytes =
      static_cast<std::uint64_t>(3 * (elements * kAttentionElement + of.tokens * of.heads * 4));
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    const kernels::AttentionMergeArgs args{to.Of(out_a, at), to.Of(lse_a, at), to.Of(out_b, at),
                                           to.Of(lse_b, at), to.Of(out, at),   to.Of(lse, at)};
    return to.Put(kernels::kAttentionMergeKernel, args);
  };
  return one;
}

void AddPrefillCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases) {
  // Batches of 16384 tokens in total.
  const std::vector<std::int64_t> lengths =
      options.tiny ? std::vector<std::int64_t>{16} : std::vector<std::int64_t>{1024, 4096, 16384};
  for (const std::int64_t tokens : lengths) {
    const AttentionOfCase of = options.tiny ? AttentionOfCase{2, tokens, 4, 2, 128}
                                            : AttentionOfCase{16384 / tokens, tokens, 32, 8, 128};
    for (const PrefillWay& way : kPrefillWays) {
      cases->push_back(PrefillCase(of, way, options.facts));
    }
    for (const std::int64_t page : kPrefillPages) {
      if (of.tokens % page != 0) continue;
      cases->push_back(PrefillCase(of, {"wgmma, paged", 2, kernels::PrefillForm::kWgmmaSm90, page},
                                   options.facts));
    }
    // Beside them, how other GPUs read paged keys, and all of them pages of 1.
    for (const std::int64_t page : {16, 1}) {
      if (of.batch > 1) continue;
      cases->push_back(PrefillCase(of, {"2 stages, paged", 2, kernels::PrefillForm::kCpAsync, page},
                                   options.facts));
    }
  }
}

void AddFewQueriesCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases) {
  // Few queries at the end of long sequences, as of a chunk, or of tokens guessed ahead.
  struct FewQueries {
    std::int64_t batch;
    std::int64_t tokens;
    std::int64_t page;
    std::int64_t queries;
  };
  const std::vector<FewQueries> few =
      options.tiny
          ? std::vector<FewQueries>{{2, 32, 16, 3}}
          : std::vector<FewQueries>{{1, 32768, 16, 16}, {1, 32768, 256, 16}, {16, 4096, 16, 4}};
  for (const FewQueries& size : few) {
    cases->push_back(
        PrefillCase({size.batch, size.tokens, 32, 8, 128},
                    {"wgmma, parts", 2, kernels::PrefillForm::kWgmmaSm90, size.page, size.queries},
                    options.facts));
  }
}

}  // namespace

void AddAttentionCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases) {
  // Heads as Qwen3-8B has them.
  struct DecodeSize {
    std::int64_t batch;
    std::int64_t tokens;
    std::int64_t page;
  };
  const std::vector<DecodeSize> decodes =
      options.tiny
          ? std::vector<DecodeSize>{{2, 40, 16}}
          : std::vector<DecodeSize>{
                {1, 1024, 256}, {1, 16384, 256}, {8, 4096, 256},  {64, 1024, 256}, {64, 1024, 16},
                {64, 1024, 1},  {32, 4096, 256}, {64, 4096, 256}, {1, 32768, 256}, {16, 4096, 256}};
  for (const DecodeSize& size : decodes) {
    const AttentionOfCase of{size.batch, size.tokens, 32, 8, 128};
    cases->push_back(DecodeCase(of, {.page = size.page}, options.facts));
    cases->push_back(DecodeCase(of, {.page = size.page, .e4m3 = true}, options.facts));
  }
  const AttentionOfCase windowed =
      options.tiny ? AttentionOfCase{2, 40, 32, 8, 128} : AttentionOfCase{8, 16384, 32, 8, 128};
  cases->push_back(
      DecodeCase(windowed, {.page = 16, .window = options.tiny ? 20 : 1024}, options.facts));
  for (const std::int64_t tokens :
       options.tiny ? std::vector<std::int64_t>{3} : std::vector<std::int64_t>{16, 4096, 16384}) {
    cases->push_back(MergeCase({1, tokens, 32, 8, 128}));
  }
  AddPrefillCases(options, cases);
  AddFewQueriesCases(options, cases);
}

}  // namespace ferry::tools
