// The NIXL library that loads the plug-in: its version, and whether its interface is the known one.
#pragma once
#include <cstddef>
#include <string>

#include "plugins/nixl/log.h"

namespace ferry::nixl {

// What is found of a NIXL library without calling it.
struct AgentLibrary {
  std::string path;                  // of libnixl.so; empty: unknown
  std::string version;               // "1.5.1"; empty: unknown
  std::size_t engine_functions = 0;  // slots of the virtual table of its back ends; 0: unknown
};

// The path of the libnixl.so that contains `code`; empty where another file contains it.
std::string LibraryOf(const void* code);

// Reads the files around a libnixl.so: the version from libnixl_common.so beside it, or from the
// name of the wheel's .dist-info folder; the virtual table from a plug-in of NIXL's own.
AgentLibrary InspectLibrary(const std::string& path);

struct Judgement {
  bool usable = true;
  LogLevel level = LogLevel::kDebug;  // of `text`
  std::string text;
};
// Refuses other major versions and other virtual tables; warns of minor versions that are newer
// than the known ones.
Judgement Judge(const AgentLibrary& library);

// All of this for the library that contains `caller`, with the judgement in the log. `caller`: an
// address of its code.
bool MayBeUsedBy(const void* caller) noexcept;

}  // namespace ferry::nixl
