// The interface of executors that copy block lists and return when done.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"

namespace ferry {

// Copies block lists. All executors produce the same bytes; they differ in the memory they can
// access and in the lists they are fast for.
class Executor {
 public:
  virtual ~Executor() = default;

  // "host", "dma" or "kernel"; static storage.
  virtual std::string_view name() const noexcept = 0;

  // Copies every block of `list`, whose offsets are relative to `dst` and `src`, and blocks until
  // the bytes are in place. Validates the list first; copies nothing if that fails. The written
  // memory must not overlap the read memory. Errors: those of BlockList::Validate().
  virtual Status Execute(const BlockList& list, std::span<std::byte> dst,
                         std::span<const std::byte> src) = 0;
};

}  // namespace ferry
