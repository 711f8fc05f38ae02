// The tuner that NCCL finds in this library.
#pragma once
#include <cstddef>

#include "ferry/net/nccl_abi/abi.h"

// NCCL asks a tuner which algorithm, and how many channels, to use for a collective; it also looks
// for a tuner in its network's library. Ours withdraws the choices that NCCL bases on the devices
// that the network reports (NcclRequest), and algorithms that are slow over sockets.
namespace ferry::nccl_net {

// ncclTuner_v4_t, which NCCL 2.24 and later ask (src/include/plugin/tuner of NCCL's).
struct TunerV4 {
  const char* name;
  int (*init)(std::size_t ranks, std::size_t nodes, net::nccl_abi::Logger logger, void** context);
  // `costs`: of each algorithm with each protocol, by algorithm first; negative values exclude a
  // choice.
  int (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                       float* costs, int algorithms, int protocols, int registered, int* channels);
  int (*destroy)(void* context);
};

// The number of channels for short collectives.
inline constexpr int kFewChannels = 2;

// From now on, communicators of several nodes have at least `channels` channels: NCCL was asked for
// more than it would have created, which makes short collectives slower unless they are kept to
// fewer. All ranks must do the same; NCCL does not compare. Any thread.
void TuneForChannels(int channels) noexcept;

}  // namespace ferry::nccl_net
