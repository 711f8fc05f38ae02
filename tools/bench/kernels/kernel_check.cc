// Compares the results of a benchmark case with the op's CPU form.

#include "tools/bench/kernels/kernel_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/address.h"
#include "ferry/kernels/number.h"

namespace ferry::tools {
namespace {

using kernels::DType;

// Marks memory that the CPU form has not written: no result of 2 bytes or more is likely to equal
// it.
constexpr std::byte kUnwritten{0xa5};

struct HostPiece {
  std::vector<std::byte> bytes;
  const KernelBuffer* results = nullptr;  // of which it is a part; null: it is an input
};

// The host's copies of the device's memory that an op on the CPU asks for. Inputs are read from the
// device; results are its own.
class PartMemory final : public cuda::EmulatedMemory {
 public:
  PartMemory(const KernelCase* one, KernelAddresses addresses, const ReadDevice* read)
      : one_(one), addresses_(addresses), read_(read) {}

  Result<std::byte*> At(std::uint64_t address, std::uint64_t bytes) override {
    const KernelBuffer* const buffer = BufferAt(address);
    auto* const there = cuda::PointerTo<std::byte>(address);
    if (buffer == nullptr) return there;  // the case's own, on the host
    HostPiece& piece = pieces_[{address, bytes}];
    // An op may ask for the same memory more than once, and must find what it has written.
    if (!piece.bytes.empty() || bytes == 0) return piece.bytes.data();
    piece.bytes.assign(bytes, kUnwritten);
    if (buffer->holds == KernelBuffer::Holds::kResults) {
      piece.results = buffer;
    } else {
      FERRY_TRY((*read_)(there, piece.bytes));
    }
    return piece.bytes.data();
  }

  const std::map<std::pair<std::uint64_t, std::uint64_t>, HostPiece>& pieces() const {
    return pieces_;
  }
  // Before other units: large inputs stay.
  void ForgetResults() {
    for (auto it = pieces_.begin(); it != pieces_.end();) {
      it = it->second.results != nullptr ? pieces_.erase(it) : std::next(it);
    }
  }

 private:
  const KernelBuffer* BufferAt(std::uint64_t address) const {
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      const std::uint64_t begin = cuda::AddressOf(addresses_[i]);
      if (address >= begin && address - begin < one_->buffers[i].bytes) return &one_->buffers[i];
    }
    return nullptr;
  }

  const KernelCase* const one_;
  const KernelAddresses addresses_;
  const ReadDevice* const read_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, HostPiece> pieces_;
};

// The worst so far.
struct Comparison {
  std::size_t compared = 0;
  double most = 1;  // times what is allowed
  std::string wrong;
};

double ValueAt(std::span<const std::byte> bytes, DType dtype, std::size_t element) {
  if (dtype != DType::kInt64) {
    return double{kernels::ReadFloat(bytes.data(), dtype, static_cast<std::int64_t>(element))};
  }
  std::int64_t value = 0;
  std::memcpy(&value, bytes.data() + element * sizeof value, sizeof value);
  return static_cast<double>(value);
}

struct Element {
  double got = 0;
  double said = 0;  // by the CPU
};

void CompareElement(const KernelCase& one, const Element& element, const KernelBuffer& buffer,
                    double terms, Comparison* comparison) {
  const auto [got, said] = element;
  ++comparison->compared;
  // Also equal infinities, whose difference would be NaN.
  if (got == said || (std::isnan(got) && std::isnan(said))) return;
  constexpr double kBothRound = 2;
  // No error is allowed of infinities and NaNs, whose bound would be infinite, too.
  const bool finite = std::isfinite(got) && std::isfinite(said);
  const double allowed =
      buffer.dtype == DType::kInt64 || !finite
          ? 0
          : kBothRound * kernels::AllowedError(said, std::max(terms, std::fabs(said)),
                                               one.roundings, buffer.dtype);
  const double error = std::fabs(got - said);
  if (finite && error <= allowed) return;
  const double times = allowed > 0 && std::isfinite(error) ? error / allowed : HUGE_VAL;
  if (times < comparison->most) return;
  comparison->most = times;
  comparison->wrong = fmt::format(
      "an element is {}; the CPU's result is {}, and they may differ by {}", got, said, allowed);
}

void ComparePiece(const KernelCase& one, const HostPiece& piece, std::span<const std::byte> got,
                  double terms, Comparison* comparison) {
  const auto size = static_cast<std::size_t>(kernels::SizeOf(piece.results->dtype));
  const std::span<const std::byte> said(piece.bytes);
  for (std::size_t i = 0; i < said.size() / size; ++i) {
    const auto bytes = said.subspan(i * size, size);
    const bool unwritten =
        std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kUnwritten; });
    // The CPU's form has computed only the units that it was asked for.
    if (unwritten) continue;
    const DType dtype = piece.results->dtype;
    CompareElement(one, {ValueAt(got, dtype, i), ValueAt(said, dtype, i)}, *piece.results, terms,
                   comparison);
  }
}

std::vector<KernelUnits> UnitsToCheck(const KernelCase& one) {
  constexpr std::int64_t kPlaces = 3;
  const std::int64_t each = std::min(one.units_checked, one.units);
  std::vector<KernelUnits> units;
  // All of a small case; a large one at its beginning, its end and a random place.
  if (one.units <= kPlaces * each) {
    for (std::int64_t first = 0; first < one.units; first += each) {
      units.push_back({first, std::min(each, one.units - first)});
    }
    return units;
  }
  std::mt19937_64 random(std::random_device{}());
  const std::int64_t last = one.units - each;
  const auto between = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(last + 1));
  for (const std::int64_t first : {std::int64_t{0}, between, last}) units.push_back({first, each});
  return units;
}

}  // namespace

Result<std::size_t> CompareWithCpu(const KernelCase& one, KernelAddresses addresses,
                                   const ReadDevice& read) {
  Comparison comparison;
  PartMemory memory(&one, addresses, &read);
  std::vector<std::byte> got;
  for (const KernelUnits& units : UnitsToCheck(one)) {
    const KernelStream cpu{.memory = &memory, .units = units};
    FERRY_TRY(one.launch(cpu, addresses));
    double terms = 0;
    for (std::int64_t i = 0; one.terms != nullptr && i < units.count; ++i) {
      terms = std::max(terms, one.terms(units.first + i));
    }
    for (const auto& [place, piece] : memory.pieces()) {
      if (piece.results == nullptr) continue;
      got.resize(piece.bytes.size());
      FERRY_TRY(read(cuda::PointerTo<std::byte>(place.first), got));
      ComparePiece(one, piece, got, terms, &comparison);
    }
    memory.ForgetResults();
  }
  if (one.units > 0 && comparison.compared == 0) {
    return Error(Code::kCorrupt, fmt::format("{} was not checked: its form for the CPU wrote no "
                                             "result; correct the case's launch",
                                             NameOf(one)));
  }
  if (comparison.wrong.empty()) return comparison.compared;
  return Error(Code::kCorrupt, fmt::format("{} is wrong: {}; run ferry_kernels_test on this GPU",
                                           NameOf(one), comparison.wrong));
}

}  // namespace ferry::tools
