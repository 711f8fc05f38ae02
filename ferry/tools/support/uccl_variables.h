// Environment variables that scripts for UCCL's TCPX library set. docs/tcpx.md defines their
// meaning here; command line options take precedence.
#pragma once
#include "ferry/tools/support/json_fwd.h"

namespace ferry::tools {

inline constexpr const char* kUcclUnpack = "UCCL_TCPX_UNPACK_IMPL";
inline constexpr const char* kUcclChannels = "UCCL_TCPX_NUM_CHANNELS";
inline constexpr const char* kUcclChunk = "UCCL_TCPX_CHUNK_BYTES";
inline constexpr const char* kUcclDebug = "UCCL_TCPX_DEBUG";
inline constexpr const char* kUcclLaunchDebug = "UCCL_TCPX_LAUNCH_DEBUG";
inline constexpr const char* kUcclPerfSize = "UCCL_TCPX_PERF_SIZE";
inline constexpr const char* kUcclPerfIterations = "UCCL_TCPX_PERF_ITERS";

// Whether the variable is set to a value other than 0.
bool IsSwitchedOn(const char* variable) noexcept;

// For `ferry info`: the "name", "value" (null if unset) and equivalent option "as" of each
// variable.
Json UcclVariables();
void PrintUcclVariables(const Json& variables);

}  // namespace ferry::tools
