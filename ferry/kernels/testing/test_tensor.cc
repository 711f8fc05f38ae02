// Implements test tensors with guards and gaps.

#include "ferry/kernels/testing/test_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

constexpr std::size_t kGuardBytes = 256;  // as device memory is aligned
constexpr std::byte kPoison{0xff};

}  // namespace

TestTensor::TestTensor(DType dtype, std::vector<std::int64_t> shape, const TestLayout& layout) {
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t place = shape.size(); place-- > 0;) {
    const bool swapped = layout.heads_first && (place == 1 || place == 2);
    const std::size_t d = swapped ? 3 - place : place;
    view_.shape[d] = shape[d];
    view_.stride[d] = stride + layout.gap[d];
    stride = view_.stride[d] * std::max<std::int64_t>(shape[d], 1);
  }
  const std::int64_t bytes = layout.skip * SizeOf(dtype) + view_.SpanBytes();
  memory_.assign(kGuardBytes + static_cast<std::size_t>(bytes) + kGuardBytes, kPoison);
  view_.data = memory_.data() + kGuardBytes + layout.skip * SizeOf(dtype);
}

std::int64_t TestTensor::PlaceOf(std::int64_t element) const {
  std::int64_t place = 0;
  for (auto d = static_cast<std::size_t>(view_.rank); d-- > 0;) {
    place += element % view_.shape[d] * view_.stride[d];
    element /= view_.shape[d];
  }
  return place;
}

double TestTensor::Get(std::int64_t element) const {
  const std::int64_t place = PlaceOf(element);
  const auto* const at = static_cast<const std::byte*>(view_.data) + place * SizeOf(view_.dtype);
  if (view_.dtype == DType::kInt32) {
    std::int32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  if (view_.dtype == DType::kInt64) {
    std::int64_t value;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  }
  return ReadFloat(view_.data, view_.dtype, place);
}

void TestTensor::Set(std::int64_t element, double value) {
  const std::int64_t place = PlaceOf(element);
  auto* const at = static_cast<std::byte*>(view_.data) + place * SizeOf(view_.dtype);
  if (view_.dtype == DType::kInt32) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(at, &whole, sizeof whole);
  } else if (view_.dtype == DType::kInt64) {
    const auto whole = static_cast<std::int64_t>(value);
    std::memcpy(at, &whole, sizeof whole);
  } else {
    WriteFloat(view_.data, view_.dtype, place, static_cast<float>(value));
  }
}

std::vector<double> TestTensor::Values() const {
  std::vector<double> values(static_cast<std::size_t>(Numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = Get(static_cast<std::int64_t>(i));
  return values;
}

void TestTensor::Fill(const std::function<double(std::int64_t)>& value) {
  const std::int64_t count = Numel();
  for (std::int64_t i = 0; i < count; ++i) Set(i, value(i));
}

void TestTensor::FillNormally(std::mt19937_64* random, double mean, double deviation) {
  std::normal_distribution<float> distribution(static_cast<float>(mean),
                                               static_cast<float>(deviation));
  Fill([&](std::int64_t) { return distribution(*random); });
}

void TestTensor::Poison() { std::fill(memory_.begin(), memory_.end(), kPoison); }

void TestTensor::ExpectGapsUntouched(const std::string& name) const {
  std::vector<std::byte> rest = memory_;
  const auto begin = static_cast<const std::byte*>(view_.data) - memory_.data();
  const std::int64_t count = Numel();
  const std::int64_t size = SizeOf(view_.dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    std::fill_n(rest.begin() + begin + PlaceOf(i) * size, size, kPoison);
  }
  const auto touched =
      std::find_if(rest.begin(), rest.end(), [](std::byte byte) { return byte != kPoison; });
  EXPECT_EQ(touched, rest.end()) << name << ", " << ToString(view_) << ": byte "
                                 << (touched - rest.begin() - begin)
                                 << " from its beginning is none of its elements and was written";
}

Snapshot::Snapshot(std::vector<TestTensor*> tensors) : tensors_(std::move(tensors)) {
  for (TestTensor* tensor : tensors_) {
    bytes_.emplace_back(tensor->memory().begin(), tensor->memory().end());
  }
}

void Snapshot::ExpectSame(const std::string& name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto now = tensors_[i]->memory();
    EXPECT_TRUE(SameBytes(now, bytes_[i]))
        << name << ": input " << i << ", " << ToString(tensors_[i]->view()) << ", was written";
  }
}

}  // namespace ferry::kernels
