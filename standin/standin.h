// Functions that the stand-in exports for tests.
#pragma once

// Symbols that the stand-in exports for tests besides ncclNetPlugin_v7: find them by dlsym in the
// same library. Any thread. docs/tcpx_standin.md says what the stand-in is, and names its
// variables.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming): C names

// How often the host has broken a rule since the library was loaded, or since the last reset.
unsigned long ferry_standin_misuses();
// The last of these, "" if there is none. Valid for as long as the library is loaded.
const char* ferry_standin_last_misuse();
// Forgets them. Not the settings, which the first init() reads for good.
void ferry_standin_reset();
// Bytes in use over all bounce pools; 0 once everything is consumed.
unsigned long ferry_standin_pages_in_use();
// For hosts, as ferry/tcpx/host/plugin.h has it; the original has no such function. The bytes of
// the pool that begins there; 0 where none does.
unsigned long long ferry_net_pool_bytes(const void* pool);
// NOLINTEND(readability-identifier-naming)
}
