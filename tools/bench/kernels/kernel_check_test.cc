// Kernel-bench finds results that are written, and wrong.
#include "tools/bench/kernels/kernel_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/address.h"
#include "ferry/kernels/number.h"

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

// A case with buffers on the host in the place of a device, for which its launch is the CPU's, too.
class CheckedCase {
 public:
  explicit CheckedCase(KernelCase one) : one_(std::move(one)) {
    std::uint32_t next = 1;
    for (const KernelBuffer& buffer : one_.buffers) {
      memory_.emplace_back(buffer.bytes);
      if (!buffer.table.empty()) memory_.back() = buffer.table;
      if (buffer.holds != KernelBuffer::Holds::kNumbers) continue;
      for (std::size_t at = 0; at + 2 <= buffer.bytes; at += 2) {
        next = next * 1664525U + 1013904223U;
        const float number = static_cast<float>(next >> 8) * 0x1p-23F - 1;
        const std::uint16_t bits = kernels::ToBfloat16(number);
        std::memcpy(memory_.back().data() + at, &bits, sizeof bits);
      }
    }
    for (auto& memory : memory_) addresses_.push_back(memory.data());
  }

  // All units, into the memory that is the device's.
  Status RunAll() {
    Same same;
    return one_.launch({.memory = &same, .units = {0, one_.units}}, addresses_);
  }
  // Units one by one, where a case takes no more at once.
  Status RunEach() {
    Same same;
    for (std::int64_t unit = 0; unit < one_.units; ++unit) {
      FERRY_TRY(one_.launch({.memory = &same, .units = {unit, 1}}, addresses_));
    }
    return Ok();
  }
  Result<std::size_t> Compare() {
    return CompareWithCpu(one_, addresses_, [](const std::byte* from, std::span<std::byte> to) {
      std::memcpy(to.data(), from, to.size());
      return Ok();
    });
  }
  std::vector<std::byte>& results() {
    std::size_t i = 0;
    while (one_.buffers[i].holds != KernelBuffer::Holds::kResults) ++i;
    return memory_[i];
  }

 private:
  struct Same final : cuda::EmulatedMemory {
    Result<std::byte*> At(std::uint64_t address, std::uint64_t /*bytes*/) override {
      return cuda::PointerTo<std::byte>(address);
    }
  };

  KernelCase one_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<void*> addresses_;
};

std::vector<KernelCase> TinyCases() { return KernelCases({.facts = {}, .tiny = true}); }

class KernelCheckTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(KernelCheckTest, WhatTheCpuSaysIsRightAndOneWrongElementIsFound) {
  const KernelCase one = TinyCases().at(GetParam());
  SCOPED_TRACE(NameOf(one));
  CheckedCase checked(one);
  ASSERT_TRUE(checked.RunEach());
  const auto right = checked.Compare();
  ASSERT_TRUE(right) << right.error().ToString();
  EXPECT_GT(*right, 0U);
  // Some bytes of the first unit, which is always looked at.
  std::vector<std::byte>& results = checked.results();
  for (std::size_t i = 0; i < 16 && i < results.size(); ++i) results[i] ^= std::byte{0x41};
  const auto wrong = checked.Compare();
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kCorrupt);
  EXPECT_THAT(wrong.error().message(), HasSubstr(" is wrong: an element is "));
}

INSTANTIATE_TEST_SUITE_P(Tiny, KernelCheckTest,
                         ::testing::Range(std::size_t{0}, TinyCases().size()));

TEST(KernelCheck, SmallErrorsOfSmallElementsAreFound) {
  for (const KernelCase& one : TinyCases()) {
    if (one.op != "rope") continue;
    CheckedCase checked(one);
    ASSERT_TRUE(checked.RunAll());
    std::vector<std::byte>& results = checked.results();
    std::uint16_t bits = 0;
    std::memcpy(&bits, results.data(), sizeof bits);
    bits = static_cast<std::uint16_t>(bits + 8);  // 3 % or more
    std::memcpy(results.data(), &bits, sizeof bits);
    EXPECT_FALSE(checked.Compare());
  }
}

// An op whose form for the CPU says `said`, or writes nothing where that is empty.
KernelCase CaseThatSays(std::vector<float> said) {
  KernelCase one;
  one.op = "made_up";
  one.dtype = kernels::DType::kFloat32;
  one.units = 1;
  one.AddResults(kernels::DType::kFloat32, {4});
  one.launch = [said = std::move(said)](const KernelStream& stream, KernelAddresses addresses) {
    if (said.empty()) return Ok();
    const std::uint64_t bytes = said.size() * sizeof(float);
    const auto to = stream.memory->At(cuda::AddressOf(addresses[0]), bytes);
    if (!to) return Status(to.error());
    std::memcpy(*to, said.data(), bytes);
    return Ok();
  };
  return one;
}

Result<std::size_t> CompareFloats(const std::vector<float>& said, const std::vector<float>& got) {
  CheckedCase checked(CaseThatSays(said));
  std::memcpy(checked.results().data(), got.data(), got.size() * sizeof(float));
  return checked.Compare();
}

TEST(KernelCheck, AnInfiniteResultAllowsNothingElse) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  EXPECT_TRUE(CompareFloats({kInf, -kInf, nan, 1}, {kInf, -kInf, nan, 1}));
  const float numbers[] = {kInf, -kInf, nan, 1};
  for (const float said : numbers) {
    for (const float got : numbers) {
      const bool same = said == got || (std::isnan(said) && std::isnan(got));
      EXPECT_EQ(CompareFloats({said, 1, 1, 1}, {got, 1, 1, 1}).has_value(), same)
          << got << " for " << said;
    }
  }
  EXPECT_THAT(CompareFloats({kInf, 1, 1, 1}, {7, 1, 1, 1}).error().message(),
              HasSubstr("an element is 7; the CPU's result is inf, and they may differ by 0"));
}

TEST(KernelCheck, ACpuThatWritesNothingIsNoCheck) {
  const auto compared = CompareFloats({}, {1, 1, 1, 1});
  ASSERT_FALSE(compared);
  EXPECT_EQ(compared.error().code(), Code::kCorrupt);
  EXPECT_THAT(compared.error().message(), HasSubstr("wrote no result"));
}

}  // namespace
}  // namespace ferry::tools
