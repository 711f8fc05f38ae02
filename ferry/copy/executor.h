// The interface of executors that copy block lists and return when done.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"

namespace ferry {

// Carries out block lists. All executors give the same bytes; they differ in what memory they reach
// and in which lists they are fast at.
class Executor {
 public:
  virtual ~Executor() = default;

  // "host", "dma" or "kernel"; lives as long as the program.
  virtual std::string_view name() const noexcept = 0;

  // Copies every block of `list`, whose offsets count from the starts of `dst` and `src`, and
  // returns when the bytes are in place. Validates the list first and copies nothing where that
  // fails. The memory that blocks write must not overlap the memory that blocks read.
  // Errors: those of BlockList::Validate().
  virtual Status Execute(const BlockList& list, std::span<std::byte> dst,
                         std::span<const std::byte> src) = 0;
};

}  // namespace ferry
