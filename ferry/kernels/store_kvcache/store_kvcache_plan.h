#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/paged_cache.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"
#include "ferry/kernels/tiles.h"

// What is decided on the host before a launch; goes to the kernel as it is.
namespace ferry::kernels {

// What a thread has: words of k, and as many of v. Or a warp has tokens copied to shared memory and
// on by the copy engine (compute capability 9).
enum class StoreForm : std::uint8_t { kOneWord, kTwoWords, kFourWords, kEngine };

struct StoreKvCachePlan {
  const void* k = nullptr;
  const void* v = nullptr;
  std::int64_t k_token = 0;  // strides, in elements
  std::int64_t v_token = 0;
  std::int64_t cols = 0;     // elements of a token
  std::uint32_t tokens = 0;  // 0: nothing is to be done
  PagedCaches caches;
  RowTiles tiles;  // its rows are tokens
  DType dtype = DType::kFloat32;
  bool wide = false;  // words of 16 bytes of k and v, otherwise elements
  StoreForm form = StoreForm::kTwoWords;
  std::uint32_t blocks = 0;  // of the copy engine's form; otherwise tiles.blocks
  bool early = false;        // may begin while the kernel before it ends
};
inline constexpr std::uint32_t kStoreWarps = 4;  // of a block, in the copy engine's form
inline constexpr std::uint32_t kStoreSlots = 4;  // tokens that a warp has room for there

// Gives a plan that has all else this form, or kTwoWords where it is not for such tokens. Errors:
// as TileRows().
Status TakeForm(StoreForm form, StoreKvCachePlan* plan);

// Errors: as StoreKvCache(), but for those of slots.
Result<StoreKvCachePlan> PlanStoreKvCache(const StoreKvCacheArgs& args);

}  // namespace ferry::kernels
