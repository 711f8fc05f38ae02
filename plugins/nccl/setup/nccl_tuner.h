// The tuner library that NCCL will load.
#pragma once
#include <cstdint>
#include <string>

#include "ferry/core/config.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

// The tuner that NCCL uses. NCCL opens the library that NCCL_TUNER_PLUGIN names, by default
// libnccl-tuner.so; if there is none, it uses the tuner in the library of its network plugin.
struct NcclTuner {
  RankTuner whose = RankTuner::kThisLibrary;
  std::string path;  // kOther: path of the library; kNotFound: the variable's value
  // kOther: hash of the real file's name and size; kNotFound: hash of the name.
  std::uint8_t hash = 0;
};

// `nccl`: an address of NCCL's code, from where the search starts; null: this library's code. Loads
// nothing.
NcclTuner FindNcclTuner(const Config::Getter& get, const void* nccl);

}  // namespace ferry::nccl_net
