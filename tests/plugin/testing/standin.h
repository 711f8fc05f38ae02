#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/net/plugin/plugin.h"
#include "ferry/net/plugin/receiver.h"
#include "ferry/net/plugin/sender.h"

// The stand-in for GPUDirect-TCPX (docs/tcpx_standin.md), as the library loads it.
namespace ferry::net::plugin::testing {

// Variables without their FERRY_STANDIN_.
using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets variables of the process while it lives.
class ScopedVariables {
 public:
  explicit ScopedVariables(const Variables& variables, const std::string& prefix = {});
  ~ScopedVariables();
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;

 private:
  std::vector<std::string> names_;
};

// A copy of the file that shares nothing with others; stays loaded when it has been opened.
class StandIn {
 public:
  explicit StandIn(const Variables& variables);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  Result<Plugin*> Open();
  // What the plugin has seen done that may not be done; "" for nothing.
  std::string Misuse() const;

 private:
  const Variables variables_;
  std::string path_;
};

inline constexpr std::uint64_t kPoolBytes = std::uint64_t{64} << 20;  // the stand-in's default

// Both ends of `count` connections, on devices 0, 1, ... and 0 again.
struct Ends {
  std::vector<std::unique_ptr<SendComm>> senders;
  std::vector<std::unique_ptr<ReceiveComm>> receivers;
};
Result<Ends> Connect(Plugin* plugin, std::size_t count, Deadline deadline);

// Memory of whole pages.
struct PagesDelete {
  void operator()(std::byte* memory) const;
};
using Pages = std::unique_ptr<std::byte[], PagesDelete>;
Pages MakePages(std::size_t bytes);

}  // namespace ferry::net::plugin::testing
