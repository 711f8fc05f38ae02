#include "ferry/kernels/argument.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "ferry/cuda/address.h"

namespace ferry::kernels {
namespace {

// More than any memory has, and far from where sums overflow.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;

std::size_t RankOf(const Tensor& tensor) { return static_cast<std::size_t>(tensor.rank); }

// Bytes that a view spans, as SpanBytes(); -1 where they are more than kMostBytes.
std::int64_t CheckedSpan(const Tensor& tensor) {
  std::int64_t count = 1;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < RankOf(tensor); ++d) {
    if (tensor.shape[d] == 0) return 0;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(count, tensor.shape[d], &count) ||
        __builtin_mul_overflow(tensor.shape[d] - 1, tensor.stride[d], &reach) ||
        __builtin_add_overflow(last, reach, &last) || count > kMostBytes || last > kMostBytes) {
      return -1;
    }
  }
  return (last + 1) * SizeOf(tensor.dtype);
}

bool SameShape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

std::string TypeNames(std::initializer_list<DType> types) {
  std::string names;
  std::size_t left = types.size();
  for (const DType type : types) {
    names += NameOf(type);
    --left;
    if (left > 0) names += left == 1 ? " or " : ", ";
  }
  return names;
}

// The same elements in the same order.
bool SameView(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || !SameShape(a, b)) return false;
  for (std::size_t d = 0; d < RankOf(a); ++d) {
    if (a.shape[d] != 1 && a.stride[d] != b.stride[d]) return false;
  }
  return true;
}

// What one index of the first size spans.
std::int64_t RowBytes(const Tensor& tensor) {
  Tensor row = tensor;
  row.shape[0] = 1;
  return row.SpanBytes();
}

}  // namespace

Error Argument::Wrong(const std::string& must, SourceLoc at) const {
  return {Code::kInvalidArgument,
          fmt::format("{}: {} is {}; it must be {}", op, name, ToString(tensor), must), at};
}

Error WrongNumber(const char* op, const char* name, double value, const char* must, SourceLoc at) {
  return {Code::kInvalidArgument, fmt::format("{}: {} is {}; it must be {}", op, name, value, must),
          at};
}

Status Argument::IsView(int least_rank, int most_rank) const {
  if (tensor.rank < least_rank || tensor.rank > most_rank) {
    const std::string allowed = least_rank == most_rank
                                    ? fmt::format("{}", least_rank)
                                    : fmt::format("{} to {}", least_rank, most_rank);
    return Error(Code::kInvalidArgument, fmt::format("{}: {} has {} sizes; it must have {}", op,
                                                     name, tensor.rank, allowed));
  }
  for (std::size_t d = 0; d < RankOf(tensor); ++d) {
    if (tensor.shape[d] < 0 || tensor.stride[d] < 0) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{}: {} has size {} with stride {}; neither may be negative", op,
                               name, tensor.shape[d], tensor.stride[d]));
    }
  }
  const std::int64_t span = CheckedSpan(tensor);
  if (span < 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: {} has sizes {} with strides {}, more than any memory has", op,
                             name, ShapeName(tensor.shape.data(), tensor.rank),
                             ShapeName(tensor.stride.data(), tensor.rank)));
  }
  if (span > 0 && tensor.data == nullptr) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("{}: {} is {} at address 0; it must have memory", op, name, ToString(tensor)));
  }
  if (span > 0 && cuda::AddressOf(tensor.data) % static_cast<std::uint64_t>(SizeOf(tensor.dtype))) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: {} is {} at {}; its address must be a multiple of {}", op, name,
                             ToString(tensor), tensor.data, SizeOf(tensor.dtype)));
  }
  return Ok();
}

Status Argument::HasType(std::initializer_list<DType> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), tensor.dtype) != allowed.end()) return Ok();
  return Wrong(TypeNames(allowed));
}

Status Argument::HasTypeOf(const Argument& other) const {
  if (tensor.dtype == other.tensor.dtype) return Ok();
  return Wrong(fmt::format("{}, as {} is", NameOf(other.tensor.dtype), other.name));
}

Status Argument::HasShape(std::initializer_list<std::int64_t> sizes, const char* why) const {
  if (RankOf(tensor) == sizes.size() &&
      std::equal(sizes.begin(), sizes.end(), tensor.shape.begin())) {
    return Ok();
  }
  return Wrong(
      fmt::format("{}, {}", ShapeName(sizes.begin(), static_cast<int>(sizes.size())), why));
}

Status Argument::HasShapeOf(const Argument& other) const {
  if (SameShape(tensor, other.tensor)) return Ok();
  return Wrong(fmt::format("{}, as {} is", ShapeName(other.tensor.shape.data(), other.tensor.rank),
                           other.name));
}

Status Argument::HasDenseRows() const {
  const std::int64_t stride = tensor.stride[RankOf(tensor) - 1];
  if (stride == 1 || tensor.last() <= 1) return Ok();
  return Wrong("of stride 1 along its last size");
}

Status Argument::IsContiguous() const {
  if (tensor.IsContiguous()) return Ok();
  return Wrong("contiguous");
}

Status Argument::IsWritable() const {
  if (tensor.Numel() == 0) return Ok();
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> steps{};  // stride, size
  for (std::size_t d = 0; d < RankOf(tensor); ++d) {
    if (tensor.shape[d] > 1) steps[d] = {tensor.stride[d], tensor.shape[d]};
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;  // of the sizes with smaller strides
  for (const auto& [stride, size] : steps) {
    if (size == 0) continue;
    if (stride <= reach) return Wrong("a view whose elements do not share memory");
    reach += stride * (size - 1);
  }
  return Ok();
}

bool MayOverlap(const Tensor& a, const Tensor& b) noexcept {
  const std::int64_t a_span = a.SpanBytes();
  const std::int64_t b_span = b.SpanBytes();
  if (a_span == 0 || b_span == 0) return false;
  const auto a_begin = static_cast<std::int64_t>(cuda::AddressOf(a.data));
  const auto b_begin = static_cast<std::int64_t>(cuda::AddressOf(b.data));
  if (a_begin + a_span <= b_begin || b_begin + b_span <= a_begin) return false;
  // Both step by as much, and neither's rows reach into its own next one.
  const std::int64_t step = a.stride[0] * SizeOf(a.dtype);
  const std::int64_t a_row = RowBytes(a);
  const std::int64_t b_row = RowBytes(b);
  if (step != b.stride[0] * SizeOf(b.dtype) || a_row > step || b_row > step) return true;
  const std::int64_t behind = ((b_begin - a_begin) % step + step) % step;
  return behind < a_row || behind + b_row > step;
}

Status Argument::IsOrIsApartFrom(const Argument& read) const {
  if (SameView(tensor, read.tensor) || !MayOverlap(tensor, read.tensor)) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("{}: {} lies over {} in part; it must be {} itself or other memory", op,
                           name, read.name, read.name));
}

Status Argument::IsApartFrom(const Argument& read) const {
  if (!MayOverlap(tensor, read.tensor)) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("{}: {} lies over {}; it must be other memory", op, name, read.name));
}

}  // namespace ferry::kernels
