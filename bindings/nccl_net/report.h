// Lines of NCCL's log, and result codes of its calls.
#pragma once
#include <string>

#include "ferry/core/result.h"
#include "ferry/net/plugin/abi.h"

// What the plugin tells NCCL: lines of its log, and results of its calls.
namespace ferry::nccl_net {

// Where lines go from now on; NCCL's logger outlives the process's use of the plugin. Any thread.
void SetLogger(net::plugin::abi::Logger logger) noexcept;

// Code of NCCL's, as an address: its logger. Null before SetLogger().
const void* CodeOfNccl() noexcept;

// NCCL_DEBUG=WARN shows it.
void Warn(const std::string& text);
// NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=NET, or INIT, shows it.
void InformNet(const std::string& text);
void InformInit(const std::string& text);

// The ncclResult_t that tells NCCL what the caller can do about it.
int OutcomeOf(Code code) noexcept;
// As a warning; returns its outcome.
int Fail(const Error& error);

}  // namespace ferry::nccl_net
