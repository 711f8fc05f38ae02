// The bytes that a copy of a block list should give.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "ferry/copy/block_list.h"

namespace ferry {

// Validates the list and copies its blocks, one after another.
inline void CopyBlocks(const BlockList& list, std::span<std::byte> dst,
                       std::span<const std::byte> src) {
  const Status valid = list.Validate(dst.size(), src.size());
  ASSERT_TRUE(valid) << valid.error().ToString();
  for (const Block& block : list.blocks()) {
    std::memcpy(dst.data() + block.dst, src.data() + block.src, block.len);
  }
}

}  // namespace ferry
