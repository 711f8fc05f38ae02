// Checks of tensor arguments that all ops share; each error names op, argument, value and rule.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "ferry/core/result.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

inline constexpr std::initializer_list<DType> kFloats = {DType::kFloat32, DType::kFloat16,
                                                         DType::kBfloat16};

// An argument of an op, and what is asked of it. Errors are kInvalidArgument, in one sentence with
// the op, the argument, what it is and what it must be: "rms_norm: weight is [1023] bf16; it must
// be [1024], the last size of x". IsView() is asked first: the others rely on it.
struct Argument {
  const char* op;
  const char* name;
  const Tensor& tensor;

  // A view with so many sizes, whose sizes and strides are not negative and whose elements have
  // addresses.
  Status IsView(int least_rank, int most_rank) const;
  Status HasType(std::initializer_list<DType> allowed) const;
  Status HasTypeOf(const Argument& other) const;
  // `why` says where the sizes are from: "the last size of x".
  Status HasShape(std::initializer_list<std::int64_t> sizes, const char* why) const;
  Status HasShapeOf(const Argument& other) const;
  // The elements of the last size follow each other.
  Status HasDenseRows() const;
  Status IsContiguous() const;
  // No two elements are one: what is written can be found there later.
  Status IsWritable() const;
  // For what is written while `read` is read, element by element: it is `read` itself, or shares no
  // byte with it. Views of the same strides may lie side by side, such as columns of one matrix.
  Status IsOrIsApartFrom(const Argument& read) const;
  // For what must not be written while `read` is read at all.
  Status IsApartFrom(const Argument& read) const;

  // "rms_norm: weight is [1023] bf16; it must be <must>".
  Error Wrong(const std::string& must, SourceLoc at = SourceLoc::Current()) const;
};

// A number that is no tensor: "rms_norm: eps is -1; it must be 0 or more".
Error WrongNumber(const char* op, const char* name, double value, const char* must,
                  SourceLoc at = SourceLoc::Current());

// Whether two views share a byte. Views that step by as much may lie among each other: columns of
// one matrix, the caches of keys and of values in one tensor, halves of heads. May say yes for
// others that do.
bool MayOverlap(const Tensor& a, const Tensor& b) noexcept;

}  // namespace ferry::kernels
