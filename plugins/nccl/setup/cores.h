// The CPU cores that this rank may use.
#pragma once
#include <string>

#include "ferry/core/config.h"

namespace ferry::nccl_net {

// The number of ranks on this machine, from the launcher's variables (torchrun, Open MPI, Intel MPI
// and MPICH, Slurm). 0: unknown.
unsigned LocalRanks(const Config::Getter& get);

// Number of cores that this rank may use, at least 1: the cores that the cgroup allows (by its CPU
// quota and its set of CPUs), divided by the ranks on this machine, or the number in the calling
// thread's affinity mask if that is less. `root` precedes /proc and /sys in tests.
unsigned UsableCores(const Config::Getter& get, const std::string& root = {});

}  // namespace ferry::nccl_net
