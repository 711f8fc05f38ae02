// Options and driver for transfers through an NCCL network plugin.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/plugin/plugin.h"
#include "ferry/net/plugin/stripe.h"
#include "ferry/tools/support/command.h"
#include "ferry/tools/support/json_fwd.h"
#include "ferry/tools/support/memory_choice.h"
#include "ferry/tools/support/uccl_variables.h"
#include "ferry/unpack/unpacker.h"

namespace ferry::tools {

// The parsed values of `--provider plugin:PATH` and related options.
struct CarrierOptions {
  std::string plugin;              // a path, or a name that dlopen(3) looks for
  std::optional<UnpackBy> unpack;  // default: kernel for GPU memory, host for host memory
  net::plugin::StripeOptions stripe;
};

// Options as given on the command line; omitted ones come from the environment variables of UCCL's
// TCPX code: UCCL_TCPX_UNPACK_IMPL (kernel, d2d or host), UCCL_TCPX_NUM_CHANNELS,
// UCCL_TCPX_CHUNK_BYTES, and UCCL_TCPX_PLUGIN_PATH for the path.
struct CarrierFlags {
  std::string provider;  // "", "tcp", "plugin" or "plugin:PATH"
  std::string unpack;
  std::string channels;
  std::string chunk;
};
void DeclareCarrier(CLI::App* app, CarrierFlags* flags);
// Empty if the provider is TCP. Errors: kInvalidArgument, naming the option or the variable.
Result<std::optional<CarrierOptions>> CarrierOptionsOf(const CarrierFlags& flags,
                                                       const Config& config);
const char* UnpackName(UnpackBy by) noexcept;

// Encodes the connection handles that one side sends to the other in the field "handles", and
// decodes them. Errors: kCorrupt.
std::string HandlesToHex(const std::vector<net::plugin::Handle>& handles);
Result<std::vector<net::plugin::Handle>> HandlesField(const Json& object);

// One side of one-way transfers of one memory through a network plugin. For one thread; calls block
// until their deadline. Logs each step at level "info". Errors: those of Plugin::Open(),
// Unpacker::Create() and of both stripes; kCancelled when interrupted.
class Carrier {
 public:
  // `memory` is page-aligned and outlives the carrier.
  static Result<std::unique_ptr<Carrier>> Open(const CarrierOptions& options,
                                               std::span<std::byte> memory, MemoryChoice choice,
                                               const Config& config);

  // The receiving side calls Listen(), sends handles() to the other side, then calls Accept().
  Status Listen();
  std::vector<net::plugin::Handle> handles() const { return in_->handles(); }
  Status Accept(Deadline deadline);
  // The sending side calls Connect() with the received handles.
  Status Connect(std::span<const net::plugin::Handle> handles, Deadline deadline);

  struct Run {
    std::uint64_t offset = 0;  // in the memory
    std::uint64_t bytes = 0;
    std::uint64_t count = 1;  // times, one after another
    std::uint64_t depth = 1;  // at once
    // Replaces `offset` if it differs between transfers: called once for each, in order.
    std::function<std::uint64_t()> next_offset = nullptr;

    std::uint64_t NextOffset() const { return next_offset ? next_offset() : offset; }
  };
  // Send() returns when the plugin has sent everything, Receive() when all bytes are in place.
  Status Send(const Run& run, Deadline deadline);
  Status Receive(const Run& run, Deadline deadline);

  // Launch delays of the receiving side; zeros on the sending side.
  net::plugin::LaunchTimes launch_times() const {
    return in_ ? in_->launch_times() : net::plugin::LaunchTimes();
  }

  const net::plugin::Plugin& plugin() const noexcept { return *plugin_; }
  std::size_t channels() const noexcept { return options_.stripe.channels; }

 private:
  Carrier(const CarrierOptions& options, net::plugin::Plugin* plugin, std::span<std::byte> memory,
          MemoryChoice choice)
      : options_(options), plugin_(plugin), memory_(memory), choice_(choice) {}
  Status CheckRun(const Run& run) const;
  Status MakeCurrent();
  void TellOfDevices() const;
  void TellOfArrival(const net::plugin::Chunk& chunk, std::span<const Fragment> fragments,
                     const std::byte* pool);
  // The first bytes as text; GPU memory is copied to the host first.
  std::string FirstBytes(const std::byte* at, std::size_t bytes) const;

  const CarrierOptions options_;
  net::plugin::Plugin* const plugin_;
  const std::span<std::byte> memory_;
  const MemoryChoice choice_;
  cuda::DeviceApi* api_ = nullptr;  // null for host memory
  bool is_simulated_ = false;       // GPU memory that only this library can read
  UnpackBy by_ = UnpackBy::kHost;
  bool told_ = false;  // of the first arrival
  const bool tells_all_ = IsSwitchedOn(kUcclLaunchDebug);
  std::unique_ptr<Unpacker> unpacker_;
  std::unique_ptr<net::plugin::InStripe> in_;  // one of the two; goes before the unpacker
  std::unique_ptr<net::plugin::OutStripe> out_;
};

}  // namespace ferry::tools
