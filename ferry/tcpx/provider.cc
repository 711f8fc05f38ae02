// The provider of NCCL network plugins: lanes of another provider, with payloads over a plugin.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string_view>
#include <utility>

#include "ferry/copy/device_executor.h"
#include "ferry/core/log_limiter.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/registrable_memory.h"
#include "ferry/net/accept_gate.h"
#include "ferry/net/address.h"
#include "ferry/net/admission.h"
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/host/near_devices.h"
#include "ferry/tcpx/host/plugin_path.h"
#include "ferry/tcpx/host/registered_memory.h"
#include "ferry/tcpx/lane/lane_buffers.h"
#include "ferry/tcpx/lane/lane_setup.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::net::plugin {
namespace {

// Whose memory payloads may be. A process has one GPU as a rule; memory of another one is staged by
// the user of the provider.
constexpr int kLaneGpu = 0;

// Chunks of a payload that keep a comm busy while the next one waits for the last to be in place.
constexpr std::uint64_t kBusyChunks = 8;

// Devices take turns, for all lanes of the provider. Any thread.
class DeviceTurn {
 public:
  explicit DeviceTurn(std::vector<int> devices) : devices_(std::move(devices)) {}
  int Next() { return devices_[next_.fetch_add(1) % devices_.size()]; }

 private:
  const std::vector<int> devices_;
  std::atomic<std::size_t> next_{0};
};

// Sets up lanes for accepted control lanes, config.max_pending_handshakes at once, each for at most
// config.handshake_timeout. As with TLS, Admission decides who leaves when more come.
class PluginListener final : public Listener {
 public:
  PluginListener(const LaneTerms& terms, DeviceTurn* devices, const Config& config, EventLoop* loop,
                 Provider::Accepted accepted)
      : terms_(terms),
        devices_(devices),
        timeout_(config.handshake_timeout),
        loop_(loop),
        accepted_(std::move(accepted)),
        admission_(config.max_pending_handshakes),
        gate_(loop, &admission_, [this](bool full) { SetReason(&full_, full); }) {}
  ~PluginListener() override {
    listener_.reset();
    while (!setups_.empty()) setups_.begin()->second->Cancel();
  }

  void Take(std::unique_ptr<Listener> listener) { listener_ = std::move(listener); }
  const Address& address() const override { return listener_->address(); }
  std::vector<Address> addresses() const override { return listener_->addresses(); }
  void PauseOnLoop(bool paused) override { SetReason(&paused_by_user_, paused); }
  void ExpectOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until) override {
    listener_->ExpectOnLoop(host, lanes, until);
    admission_.Expect(host, lanes, until);
  }

  void OnAccept(std::unique_ptr<Lane> control) {
    const LaneInfo info = control->Info();
    const std::uint64_t id = next_id_++;
    const std::string host(HostOf(info.remote));
    const auto leaving = admission_.Enter(id, host, info.same_machine, Clock::now());
    if (leaving) setups_.at(*leaving)->Cancel();
    auto done = [entry = Entry(this, id), remote = info.remote](auto lane) mutable {
      PluginListener* const self = entry.Leave();
      self->End(entry.id(), remote, std::move(lane));
    };
    setups_[id] =
        LaneSetup::Start(terms_, {devices_->Next(), LaneSetup::Role::kAccepts, std::move(control),
                                  loop_, Deadline::After(timeout_), std::move(done)});
    gate_.UpdateOnLoop();
  }

 private:
  // A set-up's place in setups_. Goes with the set-up, which a loop that stops destroys.
  class Entry {
   public:
    Entry(PluginListener* owner, std::uint64_t id) : owner_(owner), id_(id) {}
    Entry(Entry&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), id_(other.id_) {}
    Entry& operator=(Entry&&) = delete;
    ~Entry() {
      if (owner_ != nullptr) (void)Leave();
    }
    std::uint64_t id() const noexcept { return id_; }
    PluginListener* Leave() {
      owner_->setups_.erase(id_);
      return std::exchange(owner_, nullptr);
    }

   private:
    PluginListener* owner_;
    std::uint64_t id_;
  };

  void End(std::uint64_t id, const std::string& remote, Result<std::unique_ptr<Lane>> lane) {
    admission_.Leave(id);
    gate_.UpdateOnLoop();
    if (lane) return accepted_(*std::move(lane));
    log_.Write(LogLevel::kWarn, "plugin", HostOf(remote), {},
               fmt::format("connection from {} refused on {}: {}", remote, address().ToString(),
                           lane.error().message()));
  }

  void SetReason(bool* reason, bool on) {
    *reason = on;
    listener_->PauseOnLoop(paused_by_user_ || full_);
  }

  const LaneTerms terms_;
  DeviceTurn* const devices_;
  const microseconds timeout_;
  EventLoop* const loop_;
  Provider::Accepted accepted_;
  std::unique_ptr<Listener> listener_;
  Admission admission_;
  AcceptGate gate_;
  bool paused_by_user_ = false;
  bool full_ = false;
  std::map<std::uint64_t, LaneSetup*> setups_;  // each owns itself
  std::uint64_t next_id_ = 1;
  LogLimiter log_;
};

class PluginProvider final : public Provider {
 public:
  PluginProvider(const LaneTerms& terms, std::vector<int> devices,
                 std::unique_ptr<Provider> control)
      : terms_(terms),
        control_(std::move(control)),
        name_("plugin:" + terms.plugin->name()),
        devices_(std::move(devices)) {}
  // Halves of lanes that were kept for a stuck GPU own the pool, so nobody else would end them.
  ~PluginProvider() override {
    if (!terms_.gpu) return;
    const auto current = terms_.gpu.MakeCurrent();
    terms_.gpu.buffers->DestroyIdle();
  }

  const char* name() const override { return name_.c_str(); }
  Capabilities capabilities() const override {
    Capabilities capabilities = control_->capabilities();
    capabilities.spliced_pages = false;
    capabilities.tls = false;  // it would not cover the payloads
    capabilities.registered_memory = true;
    capabilities.busy_payload_bytes = kBusyChunks * terms_.chunks.bytes;
    if (terms_.gpu) capabilities.gpu = terms_.gpu.ordinal;
    return capabilities;
  }

  Result<std::unique_ptr<Listener>> Listen(const Address& address, const Config& config,
                                           EventLoop* loop, Accepted accepted) override {
    auto listener =
        std::make_unique<PluginListener>(terms_, &devices_, config, loop, std::move(accepted));
    FERRY_TRY_ASSIGN(
        auto control,
        control_->Listen(address, config, loop, [raw = listener.get()](std::unique_ptr<Lane> lane) {
          raw->OnAccept(std::move(lane));
        }));
    listener->Take(std::move(control));
    return std::unique_ptr<Listener>(std::move(listener));
  }

  // Cancelling has no effect once the control lane is up: a plugin's comms are not abandoned
  // halfway.
  EventLoop::TimerId Connect(const Address& address, const Config& config, EventLoop* loop,
                             Deadline deadline, Connected connected) override {
    return control_->Connect(
        address, config, loop, deadline,
        [terms = terms_, device = devices_.Next(), loop, deadline,
         connected = std::move(connected)](Result<std::unique_ptr<Lane>> control) mutable {
          if (!control) return connected(control.error());
          LaneSetup::Start(terms, {device, LaneSetup::Role::kConnects, *std::move(control), loop,
                                   deadline, std::move(connected)});
        });
  }

  Result<std::unique_ptr<RegisteredMemory>> Register(std::span<std::byte> memory) override {
    cuda::PointerInfo info;
    if (terms_.api != nullptr) {
      FERRY_TRY_ASSIGN(info, terms_.api->Inspect(memory.data()));
    }
    const bool on_gpu = info.kind == cuda::MemoryKind::kDevice;
    if (on_gpu) FERRY_TRY(CheckGpuMemory(memory, info.ordinal));
    return std::unique_ptr<RegisteredMemory>(std::make_unique<PluginMemory>(memory, on_gpu));
  }
  // Whether the plugin can send it.
  Status CheckGpuMemory(std::span<std::byte> memory, int ordinal) const {
    if (!terms_.gpu || terms_.gpu.ordinal != ordinal || !terms_.plugin->takes_gpu_memory()) {
      return Error(Code::kUnsupported,
                   fmt::format("the provider {} does not send GPU memory of GPU {}; stage it in "
                               "host memory",
                               name_, ordinal));
    }
    if (cuda::AddressOf(memory.data()) % cuda::kRegistrationAlignment == 0) return Ok();
    return Error(Code::kInvalidArgument,
                 fmt::format("GPU memory at {:#x} cannot be registered; it must begin at a "
                             "multiple of {} bytes",
                             cuda::AddressOf(memory.data()), cuda::kRegistrationAlignment));
  }
  std::vector<LocalAddress> Addresses(const Config& config) const override {
    return control_->Addresses(config);
  }
  std::vector<std::string> InterfacesTo(const Address& to, const Config& config) const override {
    return control_->InterfacesTo(to, config);
  }
  std::unique_ptr<LinkWatch> WatchLinks(EventLoop* loop, LinkChanged changed) override {
    return control_->WatchLinks(loop, std::move(changed));
  }

 private:
  const LaneTerms terms_;
  const std::unique_ptr<Provider> control_;
  const std::string name_;
  DeviceTurn devices_;
};

// Whether lanes send and receive the GPU's memory: they need the kernels, whatever unpacks, to fill
// and empty their slots. Otherwise the user of the provider stages it.
Result<bool> IsReached(cuda::DeviceApi* api, const cuda::DeviceFacts& facts) {
  if (!facts.network_access) return false;
  FERRY_TRY_ASSIGN(const auto stream, api->CreateStream(kLaneGpu, cuda::StreamPriority::kNormal));
  return HaveCopyKernels(api, stream);
}

UnpackBy UnpackByOf(PluginUnpack setting) {
  switch (setting) {
    case PluginUnpack::kHost: return UnpackBy::kHost;
    case PluginUnpack::kDma: return UnpackBy::kDma;
    case PluginUnpack::kAuto:
    case PluginUnpack::kKernel: break;
  }
  return UnpackBy::kKernel;
}

}  // namespace

Result<std::unique_ptr<Provider>> CreateProvider(const Config& config,
                                                 std::unique_ptr<Provider> control) {
  constexpr std::string_view kPrefix = "plugin:";
  std::string path = config.provider.rfind(kPrefix, 0) == 0 ? config.provider.substr(kPrefix.size())
                                                            : FindPluginPath(config).path;
  if (path.empty() && ::access(kUsualPluginPath, F_OK) == 0) path = kUsualPluginPath;
  const UnpackBy by = UnpackByOf(config.plugin_unpack);
  LaneTerms terms;
  FERRY_TRY_ASSIGN(terms.plugin, Plugin::Open(path));
  LogDevices(*terms.plugin);
  terms.chunks = {config.plugin_chunk_bytes, config.plugin_tag_base};
  std::string gpu_path;
  if (auto devices = cuda::OpenDevices(config); devices) {
    terms.api = *devices;
    FERRY_TRY_ASSIGN(const cuda::DeviceFacts facts, terms.api->Describe(kLaneGpu));
    FERRY_TRY_ASSIGN(const bool reached, IsReached(terms.api, facts));
    if (reached) {
      terms.gpu = {terms.api, kLaneGpu, std::make_shared<LaneBufferPool>(), by};
    }
    gpu_path = "/sys/bus/pci/devices/" + facts.pci_bus_id;
  }
  const bool needs_gpu =
      config.plugin_unpack == PluginUnpack::kKernel || config.plugin_unpack == PluginUnpack::kDma;
  if (needs_gpu && !terms.gpu) {
    return Error(Code::kUnsupported,
                 fmt::format("plugin_unpack {} needs a GPU whose memory network plugins reach, and "
                             "none is here; choose auto or host (FERRY_PLUGIN_UNPACK)",
                             UnpackName(by)));
  }
  return std::unique_ptr<Provider>(std::make_unique<PluginProvider>(
      terms, DevicesNear(terms.plugin->nics(), gpu_path), std::move(control)));
}

}  // namespace ferry::net::plugin
