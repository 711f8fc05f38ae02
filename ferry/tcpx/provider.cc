// The provider of NCCL network plugins: lanes of another provider, with payloads over a plugin.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string_view>
#include <utility>

#include "ferry/copy/device_executor.h"
#include "ferry/core/log_limiter.h"
#include "ferry/core/secret.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/registrable_memory.h"
#include "ferry/net/address.h"
#include "ferry/session/pending_peers.h"
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/host/near_devices.h"
#include "ferry/tcpx/host/plugin_path.h"
#include "ferry/tcpx/host/registered_memory.h"
#include "ferry/tcpx/lane/abandoned.h"
#include "ferry/tcpx/lane/comm_setup.h"
#include "ferry/tcpx/lane/lane_buffers.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::tcpx {
namespace {

// Bytes and chunks of a payload that keep a comm busy while the next one waits for the last to be
// in place: all but the last chunk are unpacked while others come.
constexpr std::uint64_t kBusyBytes = 4 << 20;
constexpr std::uint64_t kBusyChunks = 2;

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
// config.handshake_timeout.
class PluginListener final : public net::Listener, private session::PendingPeerUser {
 public:
  PluginListener(const LaneTerms& terms, DeviceTurn* devices, const Config& config, EventLoop* loop,
                 net::Provider::Accepted accepted)
      : terms_(terms),
        devices_(devices),
        loop_(loop),
        accepted_(std::move(accepted)),
        pending_peers_({.loop = loop,
                        .role = session::wire::Role::kPlugin,
                        .places = config.max_pending_handshakes,
                        .timeout = config.handshake_timeout},
                       this, [this](bool full) { SetReason(&full_, full); }) {}
  ~PluginListener() override {
    listener_.reset();
    if (step_timer_ != 0) loop_->CancelTimerOnLoop(step_timer_);
  }

  void Take(std::unique_ptr<net::Listener> listener) { listener_ = std::move(listener); }
  const net::Address& address() const override { return listener_->address(); }
  std::vector<net::Address> addresses() const override { return listener_->addresses(); }
  void PauseOnLoop(bool paused) override { SetReason(&paused_by_user_, paused); }
  void ExpectOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until) override {
    listener_->ExpectOnLoop(host, lanes, until);
    pending_peers_.ExpectOnLoop(host, lanes, until);
  }
  void OnAccept(std::unique_ptr<net::Lane> control) {
    pending_peers_.EnterOnLoop(std::move(control));
  }

 private:
  using Handshake = session::Handshake;

  // Tells the plugin nothing of a peer that has not proved itself.
  Result<session::Demand> OnOpening(Handshake* handshake, session::wire::Type type,
                                    session::wire::MetaReader body) override {
    if (type != session::wire::Type::kHello) {
      return Error(Code::kCorrupt,
                   fmt::format("its first frame is of type {}, and a hello was expected; use the "
                               "same release on both sides",
                               session::wire::TypeName(type)));
    }
    FERRY_TRY_ASSIGN(const PluginTerms peer, ReadTerms(&body, handshake->peer_name()));
    FERRY_TRY(terms_.CheckPeerOnLoop(handshake, peer));
    return session::Demand{.secret = terms_.secret, .process = {}};
  }
  Status OnReceived(Handshake* handshake, session::wire::Type type,
                    session::wire::MetaReader* body) override {
    if (type == session::wire::Type::kHello) {
      FERRY_TRY(CheckAbandoned(*terms_.plugin, kMaxAbandonedWhenAccepting));
      setups_[handshake->number()] =
          std::make_unique<CommSetup>(terms_, devices_->Next(), handshake->peer_name());
      StepAt(Clock::now());
      return Ok();
    }
    const auto setup = setups_.find(handshake->number());
    Handle handle{};
    if (setup == setups_.end() || !body->Read(&handle) || !body->rest().empty()) {
      return Error(
          Code::kCorrupt,
          "its confirm frame does not hold one handle; use the same release on both sides");
    }
    setup->second->Connect(handle);
    return Ok();
  }
  void OnComplete(Handshake* /*handshake*/) override {}
  void OnGone(Handshake* handshake, const Error& /*error*/) override {
    setups_.erase(handshake->number());
  }
  void OnTurnedAway(const Handshake& handshake, const std::string& sentence) override {
    setups_.erase(handshake.number());
    log_.Write(LogLevel::kWarn, "plugin", net::HostOf(handshake.peer_name()), {},
               fmt::format("{} on {}", sentence, address().ToString()));
  }

  // NCCL's calls are repeated for all lanes in the making, outside their callbacks.
  void StepAt(Clock::time_point when) {
    if (step_timer_ != 0) return;
    step_timer_ = loop_->AddTimerOnLoop(when, [this] {
      step_timer_ = 0;
      std::vector<std::uint64_t> numbers;
      for (const auto& [number, setup] : setups_) numbers.push_back(number);
      for (const std::uint64_t number : numbers) Step(number);
      if (!setups_.empty()) StepAt(Clock::now() + kStepInterval);
    });
  }
  void Step(std::uint64_t number) {
    const auto entry = setups_.find(number);
    Handshake* const handshake = pending_peers_.Find(number);
    if (handshake == nullptr || entry == setups_.end()) return;
    CommSetup* const setup = entry->second.get();
    auto lane = Advance(handshake, setup);
    if (lane && *lane == nullptr) return;
    const auto owned = std::move(entry->second);  // until its lane is made
    setups_.erase(entry);
    if (lane) return accepted_(*std::move(lane));
    if (session::Advance(handshake->state(), session::Event::kDecline) != nullptr) {
      return handshake->RefuseOnLoop(lane.error());
    }
    OnTurnedAway(*handshake,
                 fmt::format("refused {}: {}", handshake->peer_name(), lane.error().message()));
    pending_peers_.CloseOnLoop(handshake);
  }
  // Null: not yet.
  Result<std::unique_ptr<net::Lane>> Advance(Handshake* handshake, CommSetup* setup) {
    std::unique_ptr<net::Lane> none;
    if (handshake->state() == session::State::kProved) {
      FERRY_TRY_ASSIGN(const Handle handle, setup->Listen());
      std::vector<std::byte> body;
      session::wire::Append(&body, terms_.Told());
      session::wire::Append(&body, handle);
      handshake->AcceptOnLoop(session::wire::Type::kWelcome, body, /*more=*/true);
    }
    FERRY_TRY_ASSIGN(const bool is_up, setup->Advance());
    if (!is_up || !handshake->complete()) return none;
    return setup->MakeLane(pending_peers_.TakeOnLoop(handshake), loop_);
  }

  void SetReason(bool* reason, bool on) {
    *reason = on;
    if (listener_ != nullptr) listener_->PauseOnLoop(paused_by_user_ || full_);
  }

  const LaneTerms terms_;
  DeviceTurn* const devices_;
  EventLoop* const loop_;
  net::Provider::Accepted accepted_;
  std::unique_ptr<net::Listener> listener_;
  bool paused_by_user_ = false;
  bool full_ = false;
  session::PendingPeers pending_peers_;
  std::map<std::uint64_t, std::unique_ptr<CommSetup>> setups_;  // by number of the handshake
  EventLoop::TimerId step_timer_ = 0;
  LogLimiter log_;
};

class PluginProvider final : public net::Provider {
 public:
  PluginProvider(const LaneTerms& terms, std::vector<int> devices,
                 std::unique_ptr<net::Provider> control)
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
  net::Capabilities capabilities() const override {
    net::Capabilities capabilities = control_->capabilities();
    capabilities.spliced_pages = false;
    capabilities.tls = false;  // it would not cover the payloads
    capabilities.registered_memory = true;
    capabilities.busy_payload_bytes = std::max(kBusyBytes, kBusyChunks * terms_.chunks.bytes);
    if (terms_.gpu) capabilities.gpu = terms_.gpu.ordinal;
    return capabilities;
  }

  Result<std::unique_ptr<net::Listener>> Listen(const net::Address& address, const Config& config,
                                                EventLoop* loop, Accepted accepted) override {
    auto listener =
        std::make_unique<PluginListener>(terms_, &devices_, config, loop, std::move(accepted));
    FERRY_TRY_ASSIGN(auto control,
                     control_->Listen(address, config, loop,
                                      [raw = listener.get()](std::unique_ptr<net::Lane> lane) {
                                        raw->OnAccept(std::move(lane));
                                      }));
    listener->Take(std::move(control));
    return std::unique_ptr<net::Listener>(std::move(listener));
  }

  // Cancelling has no effect once the control lane is up: a plugin's comms are not abandoned
  // halfway.
  EventLoop::TimerId Connect(const net::Address& address, const Config& config, EventLoop* loop,
                             Deadline deadline, Connected connected) override {
    return control_->Connect(
        address, config, loop, deadline,
        [terms = terms_, site = PluginDial::Site{devices_.Next(), loop, deadline},
         connected = std::move(connected)](Result<std::unique_ptr<net::Lane>> control) mutable {
          if (!control) return connected(control.error());
          PluginDial::Start(terms, site, *std::move(control), std::move(connected));
        });
  }

  Result<std::unique_ptr<net::RegisteredMemory>> Register(std::span<std::byte> memory) override {
    cuda::PointerInfo info;
    if (terms_.api != nullptr) {
      FERRY_TRY_ASSIGN(info, terms_.api->Inspect(memory.data()));
    }
    const bool on_gpu = info.kind == cuda::MemoryKind::kDevice;
    if (on_gpu) FERRY_TRY(CheckGpuMemory(memory, info.ordinal));
    return std::unique_ptr<net::RegisteredMemory>(std::make_unique<PluginMemory>(memory, on_gpu));
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
  std::vector<net::LocalAddress> Addresses(const Config& config) const override {
    return control_->Addresses(config);
  }
  std::vector<std::string> InterfacesTo(const net::Address& to,
                                        const Config& config) const override {
    return control_->InterfacesTo(to, config);
  }
  std::unique_ptr<net::LinkWatch> WatchLinks(EventLoop* loop, LinkChanged changed) override {
    return control_->WatchLinks(loop, std::move(changed));
  }

 private:
  const LaneTerms terms_;
  const std::unique_ptr<net::Provider> control_;
  const std::string name_;
  DeviceTurn devices_;
};

// Whether lanes send and receive the GPU's memory: they need the kernels, whatever unpacks, to fill
// and empty their slots. Otherwise the user of the provider stages it.
Result<bool> IsReached(cuda::DeviceApi* api, const cuda::DeviceFacts& facts) {
  if (!facts.network_access) return false;
  FERRY_TRY_ASSIGN(const auto stream,
                   api->CreateStream(facts.ordinal, cuda::StreamPriority::kNormal));
  return HaveCopyKernels(api, stream);
}

UnpackBy UnpackByOf(PluginUnpack setting) {
  switch (setting) {
    case PluginUnpack::kHost: return UnpackBy::kHost;
    case PluginUnpack::kDma: return UnpackBy::kDma;
    case PluginUnpack::kKernel: return UnpackBy::kKernel;
    case PluginUnpack::kAuto: break;
  }
  return UnpackBy::kAuto;
}

}  // namespace

Result<std::unique_ptr<net::Provider>> CreateProvider(const Config& config,
                                                      std::unique_ptr<net::Provider> control) {
  constexpr std::string_view kPrefix = "plugin:";
  std::string path = config.provider.rfind(kPrefix, 0) == 0 ? config.provider.substr(kPrefix.size())
                                                            : FindPluginPath(config).path;
  if (path.empty() && ::access(kUsualPluginPath, F_OK) == 0) path = kUsualPluginPath;
  const UnpackBy by = UnpackByOf(config.plugin_unpack);
  LaneTerms terms;
  FERRY_TRY_ASSIGN(terms.plugin, Plugin::Open(path));
  LogDevices(*terms.plugin);
  terms.chunks = {config.plugin_chunk_bytes, config.plugin_tag_base};
  FERRY_TRY_ASSIGN(SecretText secret, LoadSecret(config));
  if (!secret.empty()) terms.secret.emplace(std::move(secret));
  terms.insecure = config.insecure == OnOff::kOn;
  std::string gpu_path;
  if (auto devices = cuda::OpenDevices(config); devices) {
    terms.api = *devices;
    // Memory of other GPUs is staged by the user of the provider.
    FERRY_TRY_ASSIGN(const cuda::DeviceFacts facts, terms.api->Describe(terms.api->Current()));
    FERRY_TRY_ASSIGN(const bool reached, IsReached(terms.api, facts));
    if (reached) {
      terms.gpu = {terms.api, facts.ordinal, std::make_shared<LaneBufferPool>(), by};
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
  return std::unique_ptr<net::Provider>(std::make_unique<PluginProvider>(
      terms, DevicesNear(terms.plugin->nics(), gpu_path), std::move(control)));
}

}  // namespace ferry::tcpx
