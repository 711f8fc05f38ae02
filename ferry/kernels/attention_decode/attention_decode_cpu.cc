#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ferry/kernels/attention_decode/attention_decode.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

// Where an element of a cache's first column lies.
std::int64_t CacheIndex(const Tensor& cache, std::int64_t block, std::int64_t in_block,
                        std::int64_t head) {
  return block * cache.stride[0] + in_block * cache.stride[1] + head * cache.stride[2];
}

// Row `b` of the tables, as far as its length needs it.
Status ReadDecodeTable(const AttentionDecodeArgs& args, std::int64_t b,
                       std::vector<std::int64_t>* table, std::int64_t* length) {
  const std::int64_t block = args.k_cache.shape[1];
  const auto* const lengths = static_cast<const std::int32_t*>(args.context_lens.data);
  const auto* const tables = static_cast<const std::int32_t*>(args.block_tables.data);
  *length = lengths[b * args.context_lens.stride[0]];
  const std::int64_t most = args.block_tables.shape[1] * block;
  if (*length < 0 || *length > most) {
    return Error(Code::kInvalidArgument,
                 fmt::format("attention_decode: context_lens[{}] is {}; it must be 0 to {}, what "
                             "block_tables can name",
                             b, *length, most));
  }
  table->clear();
  for (std::int64_t i = 0; i * block < *length; ++i) {
    const std::int64_t entry = tables[b * args.block_tables.stride[0] + i];
    if (entry < 0 || entry >= args.k_cache.shape[0]) {
      return Error(Code::kInvalidArgument,
                   fmt::format("attention_decode: block_tables[{}, {}] is {}; with {} tokens it "
                               "must be 0 to {}, a block of k_cache",
                               b, i, entry, *length, args.k_cache.shape[0] - 1));
    }
    table->push_back(entry);
  }
  return Ok();
}

double DecodeScore(const AttentionDecodeArgs& args, std::int64_t q_at, std::int64_t k_at) {
  double score = 0;
  for (std::int64_t d = 0; d < args.q.last(); ++d) {
    score += static_cast<double>(ReadFloat(args.q.data, args.q.dtype, q_at + d)) *
             static_cast<double>(ReadFloat(args.k_cache.data, args.k_cache.dtype, k_at + d));
  }
  return score * static_cast<double>(args.scale);
}

void DecodeHead(const AttentionDecodeArgs& args, const std::vector<std::int64_t>& table,
                std::int64_t length, std::int64_t b, std::int64_t h) {
  const std::int64_t block = args.k_cache.shape[1];
  const std::int64_t kv_head = h / (args.q.shape[1] / args.k_cache.shape[2]);
  const std::int64_t q_at = b * args.q.stride[0] + h * args.q.stride[1];
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t < length; ++t) {
    const std::int64_t in = table[static_cast<std::size_t>(t / block)];
    weights.push_back(DecodeScore(args, q_at, CacheIndex(args.k_cache, in, t % block, kv_head)));
    largest = std::max(largest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::vector<double> out(static_cast<std::size_t>(args.q.last()), 0.0);
  for (std::int64_t t = 0; t < length; ++t) {
    const std::int64_t in = table[static_cast<std::size_t>(t / block)];
    const std::int64_t v_at = CacheIndex(args.v_cache, in, t % block, kv_head);
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] += weights[static_cast<std::size_t>(t)] / sum *
                static_cast<double>(ReadFloat(args.v_cache.data, args.v_cache.dtype,
                                              v_at + static_cast<std::int64_t>(d)));
    }
  }
  const std::int64_t out_at = b * args.out.stride[0] + h * args.out.stride[1];
  for (std::size_t d = 0; d < out.size(); ++d) {
    WriteFloat(args.out.data, args.out.dtype, out_at + static_cast<std::int64_t>(d),
               static_cast<float>(out[d]));
  }
}

}  // namespace

Status AttentionDecodeCpu(const AttentionDecodeArgs& args) {
  FERRY_TRY(CheckAttentionDecode(args));
  std::vector<std::int64_t> table;
  std::int64_t length = 0;
  // Nothing is written before all of them are seen to be right.
  for (std::int64_t b = 0; b < args.q.shape[0]; ++b) {
    FERRY_TRY(ReadDecodeTable(args, b, &table, &length));
  }
  for (std::int64_t b = 0; b < args.q.shape[0]; ++b) {
    FERRY_TRY(ReadDecodeTable(args, b, &table, &length));
    for (std::int64_t h = 0; h < args.q.shape[1]; ++h) DecodeHead(args, table, length, b, h);
  }
  return Ok();
}

}  // namespace ferry::kernels
