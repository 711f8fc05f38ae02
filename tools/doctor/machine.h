// Factory of the doctor's view of the real machine.
#pragma once
#include <memory>

#include "tools/doctor/system.h"

namespace ferry::tools {

// The machine that this process runs on.
std::unique_ptr<SystemView> CreateMachine();

// The parts of it that are made of sockets or processes.
Result<CommandEnd> RunCommand(const std::vector<std::string>& arguments, Deadline deadline);
Result<Route> FindRoute(const net::Address& numeric);
std::vector<Dialed> DialAll(const std::vector<net::Address>& numeric, Deadline deadline);

}  // namespace ferry::tools
