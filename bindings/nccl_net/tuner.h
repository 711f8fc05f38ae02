// The tuner that NCCL finds in this library.
#pragma once
#include <cstddef>

#include "ferry/net/plugin/abi.h"

// NCCL asks a tuner, which it also looks for in its network's library, by which algorithm and over
// how many channels to do a collective. Ours takes back what NCCL would choose by what the network
// was made to say of itself (NcclRequest), and what is slow over sockets.
namespace ferry::nccl_net {

// ncclTuner_v4_t, which NCCL 2.24 and later ask (src/include/plugin/tuner of NCCL's).
struct TunerV4 {
  const char* name;
  int (*init)(std::size_t ranks, std::size_t nodes, net::plugin::abi::Logger logger,
              void** context);
  // `costs`: of each algorithm by each protocol, algorithm by algorithm; negative for what is not
  // to be chosen.
  int (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                       float* costs, int algorithms, int protocols, int registered, int* channels);
  int (*destroy)(void* context);
};

// What short collectives are kept to.
inline constexpr int kFewChannels = 2;

// From now on, for communicators of several nodes, which have at least `channels`: NCCL has been
// asked for so many, more than it would have made, which short collectives are slower with. All
// ranks must do the same: NCCL does not compare. Any thread.
void TuneForChannels(int channels) noexcept;

}  // namespace ferry::nccl_net
