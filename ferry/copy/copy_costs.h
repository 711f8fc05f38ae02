// Measured copy costs, by which the executor "auto" chooses.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ferry/copy/device_executor.h"

namespace ferry {

// The predicted time of a copy, from measurements of a few block sizes, single and repeated.
class CopyCost {
 public:
  static constexpr std::size_t kSizes = 9;
  // 256 bytes, 1 KiB, 4 KiB ... 16 MiB.
  static constexpr std::uint64_t SizeAt(std::size_t index) {
    return std::uint64_t{256} << (2 * index);
  }

  struct Point {
    double alone = 0;  // seconds from the call to the end, for a single block
    double each = 0;   // additional seconds for each of many blocks
  };

  CopyCost() = default;
  CopyCost(double fixed, const std::array<Point, kSizes>& points)
      : fixed_(fixed), points_(points) {}

  // Accumulates blocks; seconds() is the time for all of them in one call.
  class Sum {
   public:
    explicit Sum(const CopyCost* cost) : cost_(cost) {}
    // Adds `count` blocks of this size.
    void Add(std::uint64_t block_bytes, double count = 1);
    double seconds() const noexcept;

   private:
    const CopyCost* cost_;
    double alone_ = 0;  // the longest
    double each_ = 0;
    std::uint64_t last_bytes_ = 0;  // most lists have blocks of one size
    Point last_;
  };

  // Interpolates between the measured sizes on a logarithmic scale.
  Point At(std::uint64_t block_bytes) const;
  std::string Describe() const;

 private:
  double fixed_ = 0;
  std::array<Point, kSizes> points_{};
};

// The costs of both executors on one GPU, by direction.
struct CopyCosts {
  struct Direction {
    CopyCost dma;
    CopyCost kernel;
  };
  std::array<Direction, 3> directions;  // by cuda::CopyKind
  double seconds = 0;                   // duration of the measurement

  const Direction& of(cuda::CopyKind kind) const {
    return directions[static_cast<std::size_t>(kind)];
  }
  // A few lines: which executor is used from which block size and count on.
  std::string Describe() const;
};

// Measures the GPU at the first call of the process, in well under a second, and caches the result.
// Blocks meanwhile. Any thread. Valid for the life of the program. Errors: those of DeviceApi.
Result<const CopyCosts*> MeasuredCopyCosts(cuda::DeviceApi* api, int ordinal);

}  // namespace ferry
