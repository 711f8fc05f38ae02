#pragma once
#include <string>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/config.h"

namespace ferry::nccl_net {

// Whose tuner NCCL asks. It opens what NCCL_TUNER_PLUGIN names, by default libnccl-tuner.so; only
// where there is no such library it takes the tuner in its network's library.
struct NcclTuner {
  RankTuner whose = RankTuner::kThisLibrary;
  std::string path;  // of another library
};

// `nccl`: code of NCCL's, from where it searches; null: of this library's. Loads nothing.
NcclTuner FindNcclTuner(const Config::Getter& get, const void* nccl);

}  // namespace ferry::nccl_net
