// Reference attention of one query on the CPU, in double.

#include "ferry/kernels/attention_cpu.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

double Read(const Tensor& tensor, std::int64_t at, std::size_t d) {
  return static_cast<double>(
      ReadFloat(tensor.data, tensor.dtype, at + static_cast<std::int64_t>(d)));
}

std::vector<double> ScoresOf(const AttentionRow& row, const std::vector<double>& q,
                             std::span<const TokenPlace> tokens, const HeadShift& shift) {
  std::vector<double> scores;
  scores.reserve(tokens.size());
  for (const TokenPlace& token : tokens) {
    double score = 0;
    for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * Read(row.k, token.k + shift.k, d);
    score *= row.scale;
    if (row.softcap > 0) score = row.softcap * std::tanh(score / row.softcap);
    scores.push_back(score);
  }
  return scores;
}

}  // namespace

float* LseAt(const Tensor& lse, std::int64_t query, std::int64_t head) noexcept {
  if (lse.none()) return nullptr;
  return static_cast<float*>(lse.data) + query * lse.stride[0] + head * lse.stride[1];
}

const float* SinkAt(const Tensor& sinks, std::int64_t head) noexcept {
  return sinks.none() ? nullptr : static_cast<const float*>(sinks.data) + head;
}

void AttendOnCpu(const AttentionRow& row, std::span<const TokenPlace> tokens,
                 const HeadShift& shift) {
  std::vector<double> q(static_cast<std::size_t>(row.q.last()));
  for (std::size_t d = 0; d < q.size(); ++d) q[d] = Read(row.q, row.q_at, d);
  // Softmax relative to the largest score, so that no exponential overflows. Without tokens the sum
  // is not used and the output is zeros.
  std::vector<double> weights = ScoresOf(row, q, tokens, shift);
  const double none = -std::numeric_limits<double>::infinity();
  double largest = row.sink != nullptr ? static_cast<double>(*row.sink) : none;
  for (const double score : weights) largest = std::max(largest, score);
  // Where there is nothing but a sink of -inf, there is nothing.
  double sum = row.sink != nullptr && largest > none
                   ? std::exp(static_cast<double>(*row.sink) - largest)
                   : 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::vector<double> out(q.size(), 0.0);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const double part = weights[t] / sum * row.v_scale;
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] += part * Read(row.v, tokens[t].v + shift.v, d);
    }
  }
  if (row.lse != nullptr) {
    *row.lse = static_cast<float>(sum == 0 ? none : largest + std::log(sum));
  }
  for (std::size_t d = 0; d < out.size(); ++d) {
    WriteFloat(row.out.data, row.out.dtype, row.out_at + static_cast<std::int64_t>(d),
               static_cast<float>(out[d]));
  }
}

Status ReadTable(const AttentionPages& pages, std::int64_t sequence, const SeenRange& seen,
                 std::vector<TokenPlace>* tokens) {
  const std::int64_t length = seen.length;
  const std::int64_t block = pages.k.shape[1];
  const std::int64_t most = pages.tables.shape[1] * block;
  if (length < 0 || length > most) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: sequence {} has {} tokens; it must have 0 to {}, as block_tables "
                             "can name",
                             pages.op, sequence, length, most));
  }
  const auto* const table =
      static_cast<const std::int32_t*>(pages.tables.data) + sequence * pages.tables.stride[0];
  tokens->assign(static_cast<std::size_t>(seen.first), {});
  for (std::int64_t t = seen.first; t < length; ++t) {
    const std::int64_t entry = table[t / block];
    if (entry < 0 || entry >= pages.k.shape[0]) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{}: block_tables[{}, {}] is {}; with {} tokens it must be 0 to {}, "
                               "a block of the cache",
                               pages.op, sequence, t / block, entry, length, pages.k.shape[0] - 1));
    }
    tokens->push_back({.k = entry * pages.k.stride[0] + t % block * pages.k.stride[1],
                       .v = entry * pages.v.stride[0] + t % block * pages.v.stride[1]});
  }
  return Ok();
}

}  // namespace ferry::kernels
