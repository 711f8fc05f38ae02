// A ring of buffers in shared memory: copies fill the others while one is in use.
#pragma once
#include "ferry/cuda/prim/cp_async.cuh"

namespace ferry::cuda::prim {

// The threads that share a ring, and therefore wait for each other.
struct WarpScope {
  // bar.warp.sync: blocks until all lanes have arrived; each then sees the others' writes.
  static __device__ __forceinline__ void Wait() { __syncwarp(); }
};
struct BlockScope {
  // bar.sync 0, of all threads of the thread block.
  static __device__ __forceinline__ void Wait() { __syncthreads(); }
};

// For each i < count, in order: load(i, slot) with copies (CopyAsync) into buffer `slot` < kStages,
// and when they are there, compute(i, slot). All threads of the scope call it with the same count.
// Copies that a thread has begun before, in groups that it has ended, are there when the first
// compute() begins. With one stage nothing is copied while a thread computes; with n, the next
// n - 1 are. Afterwards every copy of the thread has ended, those from before included and also
// where count is 0, but others may still be in their last compute().
//
// One barrier for each i tells two things: what was copied for i can be seen by all, and nobody
// reads i - 1 any more, into whose buffer the copies for i + kStages - 1 go.
template <int kStages, class Scope, class Load, class Compute>
__device__ __forceinline__ void RunPipeline(int count, const Load& load, const Compute& compute) {
  static_assert(kStages >= 1, "at least one buffer");
  if constexpr (kStages == 1) {
    for (int i = 0; i < count; ++i) {
      if (i > 0) Scope::Wait();
      load(i, 0);
      WaitForAllCopies();
      Scope::Wait();
      compute(i, 0);
    }
    WaitForAllCopies();  // those from before, where there was no round
  } else {
    // Every round ends a group, an empty one where nothing is left to load: so the group of i is
    // always kStages - 2 before the latest.
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < count) load(i, i);
      EndCopyGroup();
    }
    int slot = 0;
    int free_slot = kStages - 1;
    for (int i = 0; i < count; ++i) {
      WaitForCopies<kStages - 2>();
      Scope::Wait();
      if (i + kStages - 1 < count) load(i + kStages - 1, free_slot);
      EndCopyGroup();
      compute(i, slot);
      free_slot = slot;
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    WaitForAllCopies();
  }
}

}  // namespace ferry::cuda::prim
