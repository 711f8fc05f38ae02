// Implements the argument checks and the wording of their errors.

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
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 56;

std::size_t RankOf(const Tensor& tensor) { return static_cast<std::size_t>(tensor.rank); }

// Bytes that a view spans, as SpanBytes(); -1 where they are more than kMaxBytes.
std::int64_t CheckedSpan(const Tensor& tensor) {
  std::int64_t count = 1;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < RankOf(tensor); ++d) {
    // Before a product overflows: an empty tensor may have any other sizes.
    if (tensor.shape[d] == 0) return 0;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(count, tensor.shape[d], &count) ||
        __builtin_mul_overflow(tensor.shape[d] - 1, tensor.stride[d], &reach) ||
        __builtin_add_overflow(last, reach, &last) || count > kMaxBytes || last > kMaxBytes) {
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

// The bytes of a view: runs of so many, as the steps have it, the greatest first. None of its steps
// is of size 1, and none goes on where the next ends.
struct Footprint {
  struct Step {
    std::int64_t bytes = 0;
    std::int64_t size = 1;
  };
  std::array<Step, kMaxRank> steps{};
  std::size_t count = 0;
  std::int64_t run = 0;

  // The span of one index of the steps before `first`.
  std::int64_t Span(std::size_t first) const {
    std::int64_t span = run;
    for (std::size_t i = first; i < count; ++i) span += steps[i].bytes * (steps[i].size - 1);
    return span;
  }
};

Footprint FootprintOf(const Tensor& tensor) {
  const std::int64_t size = SizeOf(tensor.dtype);
  std::array<Footprint::Step, kMaxRank> sorted{};  // the smallest first
  for (std::size_t d = 0; d < RankOf(tensor); ++d) {
    if (tensor.shape[d] > 1) sorted[d] = {tensor.stride[d] * size, tensor.shape[d]};
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  Footprint made;
  made.run = size;
  for (const Footprint::Step& step : sorted) {
    if (step.bytes == 0) continue;  // no bytes of its own
    Footprint::Step* const inner = made.count > 0 ? &made.steps[made.count - 1] : nullptr;
    if (inner == nullptr && step.bytes == made.run) {
      made.run *= step.size;
    } else if (inner != nullptr && step.bytes == inner->bytes * inner->size) {
      inner->size *= step.size;
    } else {
      made.steps[made.count++] = step;
    }
  }
  std::reverse(made.steps.begin(), made.steps.begin() + static_cast<std::ptrdiff_t>(made.count));
  return made;
}

// A footprint without the steps before `first`.
struct FootprintPart {
  const Footprint& of;
  std::size_t first = 0;

  std::int64_t Span() const { return of.Span(first); }
  std::int64_t step() const { return first < of.count ? of.steps[first].bytes : 0; }
  // As it is inside of steps of so many bytes, and how many of those it makes.
  FootprintPart Within(std::int64_t bytes) const { return {of, first + (step() == bytes ? 1 : 0)}; }
  std::int64_t Count(std::int64_t bytes) const {
    return step() == bytes ? of.steps[first].size : 1;
  }
};

// Whether they share a byte, or may, where b begins `behind` bytes behind a.
bool MayMeet(const FootprintPart& a, const FootprintPart& b, std::int64_t behind) {
  // Recursive over the steps, the greatest first. It errs to one side only: true for views that do
  // not meet after all, never false for views that do. Exact for views that differ by slices of a
  // common parent, such as halves of rows or heads of one projection.
  if (behind >= a.Span() || behind + b.Span() <= 0) return false;
  const std::int64_t step = std::max(a.step(), b.step());
  if (step == 0) return true;
  const FootprintPart a_row = a.Within(step);
  const FootprintPart b_row = b.Within(step);
  if (a_row.Span() > step || b_row.Span() > step) return true;  // into the next ones: who knows
  // Each row of a has one row of b that begins in its step, and one in the step before.
  const std::int64_t near = (behind % step + step) % step;
  for (const std::int64_t apart : {near, near - step}) {
    const std::int64_t later = (apart - behind) / step;  // index of b's row, less that of a's
    if (later > -a.Count(step) && later < b.Count(step) && MayMeet(a_row, b_row, apart)) {
      return true;
    }
  }
  return false;
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
    // Sorted by stride, no two elements coincide if each step passes all that the smaller ones
    // reach. That is sufficient, and refuses a few odd views that would be harmless.
    if (stride <= reach) return Wrong("a view whose elements do not share memory");
    reach += stride * (size - 1);
  }
  return Ok();
}

bool MayOverlap(const Tensor& a, const Tensor& b) noexcept {
  if (a.Numel() == 0 || b.Numel() == 0) return false;
  const Footprint of_a = FootprintOf(a);
  const Footprint of_b = FootprintOf(b);
  return MayMeet({of_a}, {of_b},
                 static_cast<std::int64_t>(cuda::AddressOf(b.data) - cuda::AddressOf(a.data)));
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
