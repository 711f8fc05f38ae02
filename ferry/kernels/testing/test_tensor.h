// Test tensors with random contents, gaps between rows and guarded ends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// How a test's tensor lies in its memory.
struct TestLayout {
  // Elements more than the strides of a contiguous tensor have, size by size.
  Extents gap{};
  // Elements before the first, which are not a multiple of 16 bytes where it should be misaligned.
  std::int64_t skip = 0;
};

// Memory of the host with a tensor in it. Whatever does not belong to the tensor is poison: bytes
// of 0xff, which are NaN in all formats, and -1.
class TestTensor {
 public:
  TestTensor(DType dtype, std::vector<std::int64_t> shape, const TestLayout& layout = {});

  const Tensor& view() const noexcept { return view_; }
  std::span<std::byte> memory() noexcept { return memory_; }
  std::int64_t Numel() const noexcept { return view_.Numel(); }

  // Elements in the order of their indices, the last one fastest. Set() rounds to the format.
  double Get(std::int64_t element) const;
  void Set(std::int64_t element, double value);
  std::vector<double> Values() const;
  void Fill(const std::function<double(std::int64_t)>& value);
  // Normally distributed numbers.
  void FillNormally(std::mt19937_64* random, double mean = 0, double deviation = 1);
  void Poison();

  // Fails the test unless all beside the elements is still poison.
  void ExpectGapsUntouched(const std::string& name) const;

 private:
  std::int64_t PlaceOf(std::int64_t element) const;  // in elements behind view_.data

  std::vector<std::byte> memory_;
  Tensor view_;
};

// What tensors have when it is made, gaps included: for those that an op must not write. They live
// as long as this.
class Snapshot {
 public:
  explicit Snapshot(std::vector<TestTensor*> tensors);
  // Fails the test unless they have the same bytes still.
  void ExpectSame(const std::string& name) const;

 private:
  std::vector<TestTensor*> tensors_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace ferry::kernels
