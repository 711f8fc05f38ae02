// The stand-in for GPUDirect-TCPX (docs/tcpx_standin.md) as the library loads it.
#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/plugin.h"
#include "standin/testing/library_copy.h"
#include "standin/testing/pages.h"

namespace ferry::tcpx::testing {

using standin::testing::LibraryCopy;
using standin::testing::MakePages;
using standin::testing::MakePattern;
using standin::testing::Pages;
using standin::testing::ScopedVariables;
using standin::testing::Variables;

// A copy of the file that shares nothing with others; stays loaded when it has been opened.
class StandIn {
 public:
  // Variables without their FERRY_STANDIN_.
  explicit StandIn(const Variables& variables);

  Result<Plugin*> Open();
  const std::string& path() const { return copy_.path(); }
  // The misuses that the plugin has detected; "" for none.
  std::string Misuse() const;

 private:
  const Variables variables_;
  const LibraryCopy copy_;
};

// Calls `ask` until it returns a comm or an error, at most until the deadline. Polling is the only
// way to wait: the plugin's threads make the progress.
template <class Ask>
auto AskUntil(Deadline deadline, const Ask& ask) -> decltype(ask()) {
  for (;;) {
    auto answer = ask();
    if (!answer || *answer != nullptr) return answer;
    if (deadline.expired()) return Error(Code::kTimedOut, "the plugin returned no comm in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Both ends of `count` connections, on devices 0, 1, ... and 0 again.
struct Ends {
  std::vector<std::unique_ptr<SendComm>> senders;
  std::vector<std::unique_ptr<ReceiveComm>> receivers;
};
// With device 0 of `api` current, where it is not null.
Result<Ends> Connect(Plugin* plugin, std::size_t count, Deadline deadline,
                     cuda::DeviceApi* api = nullptr);

}  // namespace ferry::tcpx::testing
