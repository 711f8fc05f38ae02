// Factory of the doctor's view of the real machine.
#pragma once
#include <memory>

#include "ferry/tools/doctor/system.h"

namespace ferry::tools {

// The machine that this process runs on.
std::unique_ptr<SystemView> CreateMachine();

// The parts of it that are made of paths, sockets or processes.
Result<PathState> FindPathState(const std::string& path);
Result<std::vector<std::string>> ListFolder(const std::string& folder);
Result<std::string> FindRealPath(const std::string& path);
Result<bool> ProbeTokenOption(int option);
Result<NicSwitches> AskNic(const std::string& interface);
Result<CommandEnd> RunCommand(const std::vector<std::string>& arguments, Deadline deadline);
Result<Route> FindRoute(const net::Address& numeric);
std::vector<Dialed> DialAll(const std::vector<net::Address>& numeric, Deadline deadline);

}  // namespace ferry::tools
