// Lines of NCCL's log, and result codes of its calls.
#pragma once
#include <cstddef>
#include <string>

#include "ferry/core/result.h"
#include "ferry/net/nccl_abi/abi.h"

// Lines that the plugin writes to NCCL's log, and the results of its calls. NCCL's logger may block
// for good, so a thread of its own writes the lines, in order; nobody else waits for it, but
// FlushLog() for a while.
namespace ferry::nccl_net {

// Sets the destination of all lines from now on; NCCL's logger outlives the process's use of the
// plugin. Any thread.
void SetLogger(net::nccl_abi::Logger logger) noexcept;

// The address of NCCL's logger, as an address in NCCL's code. Null before SetLogger().
const void* CodeOfNccl() noexcept;

// The most lines that wait for NCCL's logger. Further ones are lost, and the next line that is not
// tells how many were.
inline constexpr std::size_t kMaxLogLines = 256;

// Shown with NCCL_DEBUG=WARN. Any thread, also with locks: none of these blocks.
void Warn(const std::string& text);
// Shown with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=NET, or INIT.
void InformNet(const std::string& text);
void InformInit(const std::string& text);
// Blocks until the lines so far are written, for 100 ms at most, and not at all while the logger
// has written nothing since such a wait. Call it without locks, where the process may end next.
void FlushLog();

// The ncclResult_t that tells NCCL how the caller can react.
int OutcomeOf(Code code) noexcept;
// Logs the error as a warning and returns its outcome.
int Fail(const Error& error);

}  // namespace ferry::nccl_net
