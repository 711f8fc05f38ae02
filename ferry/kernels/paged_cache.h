// Caches of keys and values in pages, [blocks, block, kv_heads, head_dim]; the slot of a token is
// block index * tokens per block + index in the block.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/indices.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// A pair of caches as kernels receive them. The elements of one head of a token are contiguous.
struct PagedCaches {
  void* k = nullptr;  // null: there are none
  void* v = nullptr;
  Indices slots;             // of each token; negative: it is not stored
  std::int64_t k_block = 0;  // strides, in elements
  std::int64_t k_place = 0;
  std::int64_t v_block = 0;
  std::int64_t v_place = 0;
  std::int64_t k_head = 0;
  std::int64_t v_head = 0;
  // Elements of a head; 0 where the heads of a token are contiguous in both caches, so that it is
  // one row.
  std::uint32_t apart = 0;
  std::int64_t slot_count = 0;
  std::uint32_t block_size = 1;
  DType dtype = DType::kFloat32;  // the tokens' own or kFloat8E4m3
  float k_inverse = 1;            // what is stored is x times this
  float v_inverse = 1;
};

// Offsets of a token in both caches, in elements.
struct CachePlace {
  std::int64_t k;
  std::int64_t v;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    inline CachePlace
    PlaceOf(const PagedCaches& caches, std::uint32_t slot) noexcept {
  const std::int64_t block = slot / caches.block_size;
  const std::int64_t place = slot % caches.block_size;
  return {block * caches.k_block + place * caches.k_place,
          block * caches.v_block + place * caches.v_place};
}

// From a token's place to its element `at`, counted through all heads.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline CachePlace
    OffsetsOf(const PagedCaches& caches, std::int64_t at) noexcept {
  if (caches.apart == 0) return {at, at};
  const std::int64_t head = static_cast<std::uint32_t>(at) / caches.apart;
  const std::int64_t in_head = at - head * caches.apart;
  return {head * caches.k_head + in_head, head * caches.v_head + in_head};
}

// The cache arguments of an op that stores tokens of [heads, head_dim].
struct CacheArguments {
  const char* op;
  const Tensor& k_cache;  // [blocks, block, heads, head_dim]; the last stride is 1
  const Tensor& v_cache;
  const Tensor& slots;  // int32 or int64 [tokens], contiguous
  float k_scale;
  float v_scale;
};
struct TokensToStore {
  DType dtype;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;
};
// Checks the arguments. Errors: kInvalidArgument for caches of other shapes, types or strides or
// that overlap, for more than 2^31 - 1 slots, and for scales that are not positive or whose inverse
// is infinite.
Result<PagedCaches> CheckCaches(const CacheArguments& arguments, const TokensToStore& tokens);

// Whether the elements of a token begin at a multiple of `bytes` in every slot.
bool CachesAreAligned(const CacheArguments& arguments, std::int64_t bytes) noexcept;

// Checks the slots of all tokens, on the CPU. Errors: kInvalidArgument with the index of the first
// token whose slot is out of range.
Status CheckSlots(const char* op, const PagedCaches& caches, std::int64_t tokens);

// Stores one number of a token, on the CPU.
void StoreInCache(void* cache, DType dtype, std::int64_t index, float value,
                  float inverse) noexcept;

}  // namespace ferry::kernels
