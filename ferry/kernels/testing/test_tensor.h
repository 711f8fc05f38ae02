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

// Layout of a test tensor in its memory.
struct TestLayout {
  // Elements added to each stride of a contiguous tensor.
  Extents gap{};
  // Elements before the first one; not a multiple of 16 bytes if the tensor should be misaligned.
  std::int64_t skip = 0;
  // Sizes 1 and 2 lie in memory in the other order: caches of [blocks, block, heads, size] whose
  // heads come before their tokens.
  bool heads_first = false;
};

// Host memory that contains a tensor. All other bytes are poison, 0xff, which reads as NaN in all
// floating-point formats and as -1.
class TestTensor {
 public:
  TestTensor(DType dtype, std::vector<std::int64_t> shape, const TestLayout& layout = {});

  const Tensor& view() const noexcept { return view_; }
  std::span<std::byte> memory() noexcept { return memory_; }
  std::int64_t Numel() const noexcept { return view_.Numel(); }

  // Elements by row-major index. Set() rounds to the format.
  double Get(std::int64_t element) const;
  void Set(std::int64_t element, double value);
  std::vector<double> Values() const;
  void Fill(const std::function<double(std::int64_t)>& value);
  // Normally distributed numbers.
  void FillNormally(std::mt19937_64* random, double mean = 0, double deviation = 1);
  void Poison();

  // Fails the test unless all bytes outside the elements are still poison.
  void ExpectGapsUntouched(const std::string& name) const;

 private:
  std::int64_t PlaceOf(std::int64_t element) const;  // in elements behind view_.data

  std::vector<std::byte> memory_;
  Tensor view_;
};

// A snapshot of tensors, gaps included, for tensors that an op must not write. The tensors must
// outlive it.
class Snapshot {
 public:
  explicit Snapshot(std::vector<TestTensor*> tensors);
  // Fails the test if any byte has changed.
  void ExpectSame(const std::string& name) const;

 private:
  std::vector<TestTensor*> tensors_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace ferry::kernels
