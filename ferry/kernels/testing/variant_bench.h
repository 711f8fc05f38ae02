#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

// Forms of an op beside each other: each is checked against the op's form for the CPU, then timed
// on several sets of buffers in turn, by graphs, and held against copies of as many bytes.
namespace ferry::kernels {

struct BenchBuffer {
  enum class Holds : unsigned char {
    kNumbers,
    kSharedNumbers,  // one for all sets of buffers
    kResults,        // written by the op, and compared
    kTable,          // `table`
  };
  Holds holds = Holds::kNumbers;
  DType dtype = DType::kBfloat16;
  std::int64_t elements = 0;
  std::vector<std::byte> table;

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(elements * SizeOf(dtype)); }
};

// Addresses of an op's buffers, in their order.
using BenchAddresses = std::span<void* const>;

struct BenchStream {
  cuda::DeviceApi* api;
  cuda::StreamRef stream;
};

struct BenchVariant {
  std::string name;
  std::function<Status(const BenchStream&, BenchAddresses)> launch;
};

// An op at one size.
struct BenchOp {
  std::string name;
  std::uint64_t bytes = 0;  // read and written
  // Results may be wrong by this part of themselves plus `floor`.
  double floor = 0;
  std::vector<BenchBuffer> buffers;
  std::vector<BenchVariant> variants;
  std::function<Status(BenchAddresses)> on_cpu;

  // These return the buffer's index.
  std::size_t Add(BenchBuffer::Holds holds, DType dtype, std::int64_t elements);
  template <class T>
  std::size_t AddTable(DType dtype, const std::vector<T>& values) {
    const std::size_t index =
        Add(BenchBuffer::Holds::kTable, dtype, static_cast<std::int64_t>(values.size()));
    const auto bytes_of_it = std::as_bytes(std::span(values));
    buffers[index].table.assign(bytes_of_it.begin(), bytes_of_it.end());
    return index;
  }
};

// Rows or tokens, and their format. Sizes that are odd are those of checks.
struct BenchSize {
  std::int64_t count = 0;
  DType dtype = DType::kBfloat16;
};
using MakeBenchOp = BenchOp (*)(const BenchSize&);

// Makes "op/variant/size" a benchmark for each variant and size, in bf16. Its time is that of a
// launch; "GB/s" are bytes read and written, "of_copy" their part of what the better of two copies
// moves; the label is OK, or WRONG and why. Returns true.
bool RegisterVariants(MakeBenchOp make, const std::vector<std::int64_t>& sizes);

// The op that copies so many bytes, half of them read: "engine" and kernels.
BenchOp CopyOp(const BenchSize& size);

}  // namespace ferry::kernels
