// The CPU cores that this rank may use.
#pragma once
#include <string>

#include "ferry/core/config.h"

namespace ferry::nccl_net {

// The number of ranks on this machine, from the launcher's variables (torchrun, Open MPI, Intel MPI
// and MPICH, Slurm). 0: unknown.
unsigned LocalRanks(const Config::Getter& get);

// This rank's share of the machine's cores, at least 1: those of the cgroup (its CPU quota, and its
// set of CPUs) divided by the ranks on this machine, and no more than the calling thread's affinity
// mask allows. `root` precedes /proc and /sys in tests.
unsigned UsableCores(const Config::Getter& get, const std::string& root = {});

}  // namespace ferry::nccl_net
