// CPU form of prefill attention.

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "ferry/kernels/attention_cpu.h"
#include "ferry/kernels/attention_prefill/attention_prefill.h"

namespace ferry::kernels {
namespace {

struct PrefillSequence {
  std::int64_t first_query = 0;
  std::int64_t queries = 0;
  std::vector<TokenPlace> keys;
};

std::int64_t EndAt(const Tensor& ends, std::int64_t i) {
  return static_cast<const std::int32_t*>(ends.data)[i * ends.stride[0]];
}

Status CheckEnds(const char* name, const Tensor& ends, std::int64_t most) {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < ends.last(); ++i) {
    const std::int64_t end = EndAt(ends, i);
    if ((i == 0 && end != 0) || end < before || end > most) {
      return Error(Code::kInvalidArgument,
                   fmt::format("attention_prefill: {}[{}] is {} after {}; it must begin with 0, "
                               "never fall, and be at most {}",
                               name, i, end, before, most));
    }
    before = end;
  }
  return Ok();
}

// The first key that query i sees, of `count`. It stands at key i + n - m of n, and sees no key
// that is `window` or more before that one.
std::int64_t FirstSeen(const AttentionPrefillArgs& args, const PrefillSequence& sequence,
                       std::int64_t i, std::int64_t count) {
  if (args.window == 0) return 0;
  const std::int64_t after = i + 1 + count - sequence.queries;
  return std::clamp<std::int64_t>(after - args.window, 0, std::max<std::int64_t>(count, 0));
}

Status ReadSequence(const AttentionPrefillArgs& args, std::int64_t b, PrefillSequence* sequence) {
  const std::int64_t first_key = EndAt(args.cu_seqlens_k, b);
  const std::int64_t keys = EndAt(args.cu_seqlens_k, b + 1) - first_key;
  sequence->first_query = EndAt(args.cu_seqlens_q, b);
  sequence->queries = EndAt(args.cu_seqlens_q, b + 1) - sequence->first_query;
  if (sequence->queries > args.max_seqlen_q) {
    return Error(Code::kInvalidArgument,
                 fmt::format("attention_prefill: sequence {} has {} queries; it must have at most "
                             "max_seqlen_q, which is {}",
                             b, sequence->queries, args.max_seqlen_q));
  }
  if (!args.block_tables.none()) {
    const AttentionPages pages{
        .op = "attention_prefill", .k = args.k, .v = args.v, .tables = args.block_tables};
    // What the first query sees reaches furthest back.
    const SeenRange seen{.first = FirstSeen(args, *sequence, 0, keys), .length = keys};
    return ReadTable(pages, b, seen, &sequence->keys);
  }
  for (std::int64_t t = first_key; t < first_key + keys; ++t) {
    sequence->keys.push_back({.k = t * args.k.stride[0], .v = t * args.v.stride[0]});
  }
  return Ok();
}

void PrefillQuery(const AttentionPrefillArgs& args, const PrefillSequence& sequence,
                  std::int64_t i) {
  const auto count = static_cast<std::int64_t>(sequence.keys.size());
  // The last query stands at the last key: query i of m sees i + 1 + n - m of n keys.
  const std::int64_t seen =
      args.causal ? std::clamp<std::int64_t>(i + 1 + count - sequence.queries, 0, count) : count;
  const std::int64_t first = std::min(FirstSeen(args, sequence, i, count), seen);
  // Index of the size that counts heads: [keys, heads, ...] or [blocks, block, heads, ...].
  const std::size_t head_of_keys = args.block_tables.none() ? 1 : 2;
  const std::int64_t group = args.q.shape[1] / KvHeads(args);
  const std::int64_t query = sequence.first_query + i;
  const bool narrow = args.k.dtype == DType::kFloat8E4m3;
  for (std::int64_t h = 0; h < args.q.shape[1]; ++h) {
    AttendOnCpu(
        {.q = args.q,
         .q_at = query * args.q.stride[0] + h * args.q.stride[1],
         .k = args.k,
         .v = args.v,
         .out = args.out,
         .out_at = query * args.out.stride[0] + h * args.out.stride[1],
         .scale = double{args.scale} * (narrow ? double{args.k_scale} : 1.0),
         .v_scale = narrow ? double{args.v_scale} : 1.0,
         .softcap = double{args.softcap},
         .sink = SinkAt(args.sinks, h),
         .lse = LseAt(args.lse, query, h)},
        std::span(sequence.keys)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(seen - first)),
        {.k = h / group * args.k.stride[head_of_keys],
         .v = h / group * args.v.stride[head_of_keys]});
  }
}

}  // namespace

Status AttentionPrefillCpu(const AttentionPrefillArgs& args) {
  FERRY_TRY(CheckAttentionPrefill(args));
  const std::int64_t batch = args.cu_seqlens_q.last() - 1;
  FERRY_TRY(CheckEnds("cu_seqlens_q", args.cu_seqlens_q, args.q.shape[0]));
  // Pages are counted for each sequence, by its table.
  const bool paged = !args.block_tables.none();
  FERRY_TRY(CheckEnds("cu_seqlens_k", args.cu_seqlens_k,
                      paged ? std::numeric_limits<std::int32_t>::max() : args.k.shape[0]));
  // Nothing is written before all of them are seen to be right.
  std::vector<PrefillSequence> sequences(static_cast<std::size_t>(batch));
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    FERRY_TRY(ReadSequence(args, static_cast<std::int64_t>(b), &sequences[b]));
  }
  for (const PrefillSequence& sequence : sequences) {
    for (std::int64_t i = 0; i < sequence.queries; ++i) PrefillQuery(args, sequence, i);
  }
  return Ok();
}

}  // namespace ferry::kernels
