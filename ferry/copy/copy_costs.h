// Measured copy costs, and the executor that chooses by them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ferry/copy/device_executor.h"

namespace ferry {

// What a list will take, by what was measured: blocks of a few sizes, alone and many of them.
class CopyCost {
 public:
  static constexpr std::size_t kSizes = 9;
  // 256 bytes, 1 KiB, 4 KiB ... 16 MiB.
  static constexpr std::uint64_t SizeAt(std::size_t index) {
    return std::uint64_t{256} << (2 * index);
  }

  struct Point {
    double alone = 0;  // seconds from the call to the end, for one block
    double each = 0;   // seconds more for each of many
  };

  CopyCost() = default;
  CopyCost(double fixed, const std::array<Point, kSizes>& points)
      : fixed_(fixed), points_(points) {}

  // Adds up blocks; seconds() is what all of them take in one call.
  class Sum {
   public:
    explicit Sum(const CopyCost* cost) : cost_(cost) {}
    // `count` blocks of this size.
    void Add(std::uint64_t block_bytes, double count = 1);
    double seconds() const noexcept;

   private:
    const CopyCost* cost_;
    double alone_ = 0;  // the longest
    double each_ = 0;
    std::uint64_t last_bytes_ = 0;  // most lists have blocks of one size
    Point last_;
  };

  // Between the sizes that were measured, in proportion of the logarithms.
  Point At(std::uint64_t block_bytes) const;
  std::string Describe() const;

 private:
  double fixed_ = 0;
  std::array<Point, kSizes> points_{};
};

// Of one GPU: by direction, of either executor.
struct CopyCosts {
  struct Direction {
    CopyCost dma;
    CopyCost kernel;
  };
  std::array<Direction, 3> directions;  // by cuda::CopyKind
  double seconds = 0;                   // that measuring took

  const Direction& of(cuda::CopyKind kind) const {
    return directions[static_cast<std::size_t>(kind)];
  }
  // A few lines: from which block size on, and for how many blocks, which executor.
  std::string Describe() const;
};

// Measures the GPU, well under a second, the first time that this process asks, and remembers. Any
// thread. Valid for the life of the program. Errors: those of DeviceApi.
Result<const CopyCosts*> MeasuredCopyCosts(cuda::DeviceApi* api, int ordinal);

// Takes whichever of both costs less by what was measured on this GPU. Errors: of measuring, and of
// MakeKernelExecutor().
Result<std::unique_ptr<DeviceExecutor>> MakeAutoExecutor(cuda::DeviceApi* api, int ordinal,
                                                         const KernelExecutorOptions& options = {});

}  // namespace ferry
