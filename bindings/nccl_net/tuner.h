#pragma once
#include <cstddef>

#include "ferry/net/plugin/abi.h"

// NCCL asks a tuner, which it also looks for in its network's library, by which algorithm and over
// how many channels to do a collective. Ours says no more than that short ones take few channels.
namespace ferry::nccl_net {

// ncclTuner_v4_t (NCCL 2.23 and later), and with an argument less v3 (2.21): src/include/plugin/
// tuner of NCCL's.
struct TunerV4 {
  const char* name;
  int (*init)(std::size_t ranks, std::size_t nodes, net::plugin::abi::Logger logger,
              void** context);
  int (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                       float** costs, int algorithms, int protocols, int registered, int* channels);
  int (*destroy)(void* context);
};
struct TunerV3 {
  const char* name;
  int (*init)(std::size_t ranks, std::size_t nodes, net::plugin::abi::Logger logger,
              void** context);
  int (*get_coll_info)(void* context, int collective, std::size_t bytes, int operations,
                       float** costs, int algorithms, int protocols, int* channels);
  int (*destroy)(void* context);
};

// From now on, for communicators of several nodes: NCCL has been asked for more channels than it
// would have made, which short collectives are slower with. Any thread.
void LimitShortCollectives() noexcept;

}  // namespace ferry::nccl_net
