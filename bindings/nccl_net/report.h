// Lines of NCCL's log, and result codes of its calls.
#pragma once
#include <string>

#include "ferry/core/result.h"
#include "ferry/net/plugin/abi.h"

// Lines that the plugin writes to NCCL's log, and the results of its calls.
namespace ferry::nccl_net {

// Sets the destination of all lines from now on; NCCL's logger outlives the process's use of the
// plugin. Any thread.
void SetLogger(net::plugin::abi::Logger logger) noexcept;

// The address of NCCL's logger, as an address in NCCL's code. Null before SetLogger().
const void* CodeOfNccl() noexcept;

// Shown with NCCL_DEBUG=WARN.
void Warn(const std::string& text);
// Shown with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=NET, or INIT.
void InformNet(const std::string& text);
void InformInit(const std::string& text);

// The ncclResult_t that tells NCCL how the caller can react.
int OutcomeOf(Code code) noexcept;
// Logs the error as a warning and returns its outcome.
int Fail(const Error& error);

}  // namespace ferry::nccl_net
