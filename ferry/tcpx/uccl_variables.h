// Environment variables that scripts for UCCL's TCPX library set.
#pragma once
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

// docs/guides/tcpx_transfer_test.md says what they mean here. Settings and options take precedence.
namespace ferry::tcpx {

inline constexpr const char* kUcclPerfSize = "UCCL_TCPX_PERF_SIZE";
inline constexpr const char* kUcclPerfIterations = "UCCL_TCPX_PERF_ITERS";

struct UcclVariable {
  const char* name;
  const char* as;  // its equivalent here
};
// All that are honoured.
std::span<const UcclVariable> UcclVariables();

// Sets what the variables say and nobody has set: lanes, chunks, unpacking and the level of the
// log. Does nothing unless config->provider is a plugin. Errors: kInvalidArgument, naming the
// variable.
Status ApplyUcclVariables(Config* config);

// The log lines that variables ask for, beside those of level info.
struct UcclLogSwitches {
  bool each_chunk = false;         // UCCL_TCPX_LAUNCH_DEBUG
  bool each_host_payload = false;  // UCCL_TCPX_HOST_RECV_DEBUG
};
UcclLogSwitches ReadUcclLogSwitches();

}  // namespace ferry::tcpx
