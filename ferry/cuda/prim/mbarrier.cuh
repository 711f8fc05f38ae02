// Barriers in shared memory that also count bytes that the copy engine delivers (PTX ISA,
// "Parallel Synchronization and Communication Instructions: mbarrier"; the variants here need
// sm_90).
//
// A barrier advances from phase to phase. A phase ends when as many threads have arrived as
// InitBarrier() was given and all bytes announced by ArriveAndExpect() have been delivered. A
// barrier is 8 bytes, aligned to 8, and is passed as its SharedAddress().
#pragma once
#include <cstdint>

#include "ferry/cuda/prim/cp_async.cuh"
#include "ferry/cuda/prim/trap.cuh"

namespace ferry::cuda::prim {

// mbarrier.init.shared::cta.b64: starts the barrier in phase 0. One thread calls it and then
// PublishBarriers(), before the __syncthreads() after which other threads use it.
__device__ __forceinline__ void InitBarrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(barrier), "r"(arrivals)
               : "memory");
}
// fence.mbarrier_init.release.cluster: the copy engine, too, sees what InitBarrier() has written.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive.shared::cta.b64, release: what this thread did before is seen by whoever sees the
// phase end.
__device__ __forceinline__ void Arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// mbarrier.arrive.expect_tx.shared::cta.b64: the same, and the phase does not end before `bytes`
// more bytes have been delivered.
__device__ __forceinline__ void ArriveAndExpect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}

// mbarrier.try_wait.parity.shared::cta.b64, acquire: whether the phase of this parity, the current
// one or the one before, has ended. Sleeps for a while, which the hardware decides, before it says
// no. For a new barrier the preceding phase, of parity 1, counts as ended.
__device__ __forceinline__ bool TryWaitForPhase(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t ended;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}
// Blocks until the phase has ended. Debug builds of device code trap after a few million tries,
// some seconds.
__device__ __forceinline__ void WaitForPhase(std::uint32_t barrier, std::uint32_t parity) {
  constexpr std::uint32_t kMaxTries = 1U << 22;
  for (std::uint32_t tries = 0; !TryWaitForPhase(barrier, parity); ++tries) {
    if (tries == kMaxTries) TrapInDebug();
  }
}

// A position in a ring of kStages buffers. Each buffer has a full barrier and an empty barrier; the
// n-th use of a buffer is phase n of both.
template <int kStages>
struct RingPlace {
  int slot = 0;
  std::uint32_t parity = 0;

  // The parity that the consumer waits for on the full barrier, and the one that the producer waits
  // for on the empty barrier; the producer's first wait returns at once.
  __device__ __forceinline__ std::uint32_t full() const { return parity; }
  __device__ __forceinline__ std::uint32_t empty() const { return parity ^ 1; }
  __device__ __forceinline__ void Advance() {
    const bool around = slot + 1 == kStages;
    slot = around ? 0 : slot + 1;
    parity ^= around ? 1 : 0;
  }
};

}  // namespace ferry::cuda::prim
