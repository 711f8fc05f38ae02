// CPU form of decode attention.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/kernels/attention_cpu.h"
#include "ferry/kernels/attention_decode/attention_decode.h"

namespace ferry::kernels {
namespace {

void DecodeSequence(const AttentionDecodeArgs& args, std::int64_t b,
                    std::span<const TokenPlace> tokens) {
  // The query stands at the last token, and sees those of its window.
  const auto seen = args.window > 0 ? static_cast<std::size_t>(args.window) : tokens.size();
  if (tokens.size() > seen) tokens = tokens.last(seen);
  const bool narrow = args.k_cache.dtype == DType::kFloat8E4m3;
  const std::int64_t group = args.q.shape[1] / args.k_cache.shape[2];
  for (std::int64_t h = 0; h < args.q.shape[1]; ++h) {
    AttendOnCpu({.q = args.q,
                 .q_at = b * args.q.stride[0] + h * args.q.stride[1],
                 .k = args.k_cache,
                 .v = args.v_cache,
                 .out = args.out,
                 .out_at = b * args.out.stride[0] + h * args.out.stride[1],
                 .scale = double{args.scale} * (narrow ? double{args.k_scale} : 1.0),
                 .v_scale = narrow ? double{args.v_scale} : 1.0,
                 .softcap = double{args.softcap},
                 .sink = SinkAt(args.sinks, h),
                 .lse = LseAt(args.lse, b, h)},
                tokens,
                {.k = h / group * args.k_cache.stride[2], .v = h / group * args.v_cache.stride[2]});
  }
}

}  // namespace

Status AttentionDecodeCpu(const AttentionDecodeArgs& args) {
  FERRY_TRY(CheckAttentionDecode(args));
  const AttentionPages pages{
      .op = "attention_decode", .k = args.k_cache, .v = args.v_cache, .tables = args.block_tables};
  const auto* const lengths = static_cast<const std::int32_t*>(args.context_lens.data);
  // Nothing is written before all of them are seen to be right.
  std::vector<std::vector<TokenPlace>> sequences(static_cast<std::size_t>(args.q.shape[0]));
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const auto sequence = static_cast<std::int64_t>(b);
    const std::int64_t length = lengths[sequence * args.context_lens.stride[0]];
    const std::int64_t first =
        args.window > 0 ? std::max<std::int64_t>(length - args.window, 0) : 0;
    FERRY_TRY(ReadTable(pages, sequence, {.first = first, .length = length}, &sequences[b]));
  }
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    DecodeSequence(args, static_cast<std::int64_t>(b), sequences[b]);
  }
  return Ok();
}

}  // namespace ferry::kernels
