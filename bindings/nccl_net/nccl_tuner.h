// The tuner library that NCCL will load.
#pragma once
#include <cstdint>
#include <string>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/config.h"

namespace ferry::nccl_net {

// The tuner that NCCL asks. NCCL opens the library that NCCL_TUNER_PLUGIN names, by default
// libnccl-tuner.so; if there is no such library, it uses the tuner in the library of its network.
struct NcclTuner {
  RankTuner whose = RankTuner::kThisLibrary;
  std::string path;       // kOther: of the library; kNotFound: the name that the variable has
  std::uint8_t hash = 0;  // kOther: of its real file's name and size; kNotFound: of the name
};

// `nccl`: code of NCCL's, from where it searches; null: of this library's. Loads nothing.
NcclTuner FindNcclTuner(const Config::Getter& get, const void* nccl);

}  // namespace ferry::nccl_net
