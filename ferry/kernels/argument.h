// Checks of tensor arguments that all ops share; each error names op, argument, value and rule.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "ferry/core/result.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

inline constexpr std::initializer_list<DType> kFloats = {DType::kFloat32, DType::kFloat16,
                                                         DType::kBfloat16};

// An argument of an op and the checks on it. It does not own the tensor. Every check returns
// kInvalidArgument with one sentence that names the op, the argument, its actual form and the
// required form: "rms_norm: weight is [1023] bf16; it must be [1024], the last size of x". Call
// IsView() first: the other checks rely on it.
struct Argument {
  const char* op;
  const char* name;
  const Tensor& tensor;

  // The rank is within [least_rank, most_rank], no size or stride is negative, and all elements are
  // addressable.
  Status IsView(int least_rank, int most_rank) const;
  Status HasType(std::initializer_list<DType> allowed) const;
  Status HasTypeOf(const Argument& other) const;
  // `why` names the source of the sizes, for the error: "the last size of x".
  Status HasShape(std::initializer_list<std::int64_t> sizes, const char* why) const;
  Status HasShapeOf(const Argument& other) const;
  // The stride of the last size is 1.
  Status HasDenseRows() const;
  Status IsContiguous() const;
  // No two elements share an address, so every written element keeps its value.
  Status IsWritable() const;
  // For an output that is written element by element while `read` is read: it is either the same
  // view as `read` or shares no byte with it. Views with equal strides may interleave, such as
  // columns of one matrix.
  Status IsOrIsApartFrom(const Argument& read) const;
  // For an output that must not overlap `read` at all.
  Status IsApartFrom(const Argument& read) const;

  // "rms_norm: weight is [1023] bf16; it must be <must>".
  Error Wrong(const std::string& must, SourceLoc at = SourceLoc::Current()) const;
};

// The error of a scalar argument: "rms_norm: eps is -1; it must be 0 or more".
Error WrongNumber(const char* op, const char* name, double value, const char* must,
                  SourceLoc at = SourceLoc::Current());

// Whether two views share a byte. Exact for interleaved views with equal strides: columns of one
// matrix, key and value caches in one tensor, halves of heads. For views with different strides it
// is conservative: it may return true although they only interleave.
bool MayOverlap(const Tensor& a, const Tensor& b) noexcept;

}  // namespace ferry::kernels
