// Connections through an NCCL network plugin.
#include "ferry/tcpx/host/comm.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/tcpx/host/plugin_log.h"

namespace ferry::tcpx {
namespace {

constexpr const char* kReconnect = "see that the peer is well, and reconnect";

// For destructors, which cannot return an error.
void WarnIfFailed(const Plugin& plugin, const char* call, int outcome, std::uint64_t mark) {
  if (outcome == abi::kSuccess) return;
  Log(LogLevel::kWarn, "plugin", "{}",
      plugin.CallError(Code::kInternal, call, outcome, mark, "the process goes on without")
          .message());
}

}  // namespace

// ---- Comm ---------------------------------------------------------------------------------------

Registration::~Registration() {
  if (mr_ == nullptr) return;
  const std::uint64_t mark = PluginLogMark();
  WarnIfFailed(*plugin_, "deregMr", plugin_->driver().Deregister(comm_, mr_), mark);
}

Result<Registration> Comm::Register(void* data, std::size_t bytes, bool on_gpu) {
  const std::uint64_t most = plugin_->driver().most_registered_bytes();
  if (bytes == 0 || bytes > most) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("network plugin {} registers 1 to {} bytes at a time, not {}; register "
                    "it in parts",
                    plugin_->name(), most, bytes));
  }
  void* mr = nullptr;
  const std::uint64_t mark = PluginLogMark();
  const int outcome = plugin_->driver().Register(
      comm_, data, bytes, on_gpu ? abi::kPointerCuda : abi::kPointerHost, &mr);
  if (outcome != abi::kSuccess) {
    return plugin_->CallError(
        Code::kUnsupported,
        fmt::format("regMr of {} bytes of {} memory", bytes, on_gpu ? "GPU" : "host"), outcome,
        mark, "memory of a GPU must begin at a multiple of 4096 bytes, and belong to this GPU");
  }
  return Registration(plugin_, comm_, mr);
}

Result<bool> Comm::Begin(Start start, const char* call, const Message& message) {
  // A plugin that is full answers like one that has failed, so a full one must never be asked.
  FERRY_CHECK(room() > 0, in_flight());
  void* request = nullptr;
  const std::uint64_t mark = PluginLogMark();
  const int outcome = (plugin_->driver().*start)(comm_, message, &request);
  if (outcome != abi::kSuccess) {
    return plugin_->CallError(Code::kPeerLost,
                              fmt::format("{} of {} bytes (tag {}, device {}, {} in flight)", call,
                                          message.bytes, message.tag, device_, in_flight()),
                              outcome, mark, kReconnect);
  }
  // Success without a request: nothing was begun, and the caller tries again.
  if (request != nullptr) requests_.push_back(request);
  return request != nullptr;
}

// Only the oldest request is tested: GPUDirect-TCPX refuses tests out of turn ("invalid request").
Result<void*> Comm::TakeOldest(const char* what, int* bytes) {
  if (requests_.empty()) return nullptr;
  int done = 0;
  const std::uint64_t mark = PluginLogMark();
  const int outcome = plugin_->driver().Test(requests_.front(), &done, bytes);
  if (outcome != abi::kSuccess) {
    return plugin_->CallError(Code::kPeerLost,
                              fmt::format("test of a {} (device {})", what, device_), outcome, mark,
                              kReconnect);
  }
  if (done == 0) return nullptr;
  void* const request = requests_.front();
  requests_.pop_front();
  return request;
}

// ---- SendComm -----------------------------------------------------------------------------------

SendComm::~SendComm() {
  const std::uint64_t mark = PluginLogMark();
  WarnIfFailed(*plugin_, "closeSend", plugin_->driver().CloseSend(comm_), mark);
}

Result<bool> SendComm::Send(const Message& message) {
  return Begin(&MessageApi::Send, "isend", message);
}

Result<bool> SendComm::Test() {
  int bytes = 0;
  FERRY_TRY_ASSIGN(void* const sent, TakeOldest("send", &bytes));
  return sent != nullptr;
}

// ---- ReceiveComm --------------------------------------------------------------------------------

ReceiveComm::~ReceiveComm() {
  // Those that were refused. The plugin's memory must be returned before the comm is closed.
  while (!done_.empty()) {
    if (!Consume()) break;
  }
  const std::uint64_t mark = PluginLogMark();
  WarnIfFailed(*plugin_, "closeRecv", plugin_->driver().CloseReceive(comm_), mark);
}

Result<bool> ReceiveComm::Receive(const Message& message) {
  return Begin(&MessageApi::Receive, "irecv", message);
}

Result<ReceiveComm::Arrival> ReceiveComm::Test() {
  Arrival arrival;
  FERRY_TRY_ASSIGN(arrival.request, TakeOldest("receive", &arrival.bytes));
  if (arrival.request == nullptr) return Arrival{};
  arrival.done = true;
  arrival.index = tested_++;
  done_.push_back(arrival.request);
  // The request still counts against the window, since the plugin frees it, and its row of
  // fragments, by irecvConsumed only.
  held_ = done_.size();
  return arrival;
}

Status ReceiveComm::Consume() {
  FERRY_CHECK(!done_.empty(), tested_);
  void* const request = done_.front();
  done_.pop_front();
  held_ = done_.size();
  // Other plugins have freed the request when test() said that it is done.
  if (handle_->type != abi::kDeviceTypeUnpack) return Ok();
  const std::uint64_t mark = PluginLogMark();
  const int outcome = plugin_->driver().Consume(comm_, request);
  if (outcome == abi::kSuccess) return Ok();
  return plugin_->CallError(Code::kPeerLost, fmt::format("irecvConsumed (device {})", device_),
                            outcome, mark, kReconnect);
}

// ---- connections --------------------------------------------------------------------------------

Result<std::unique_ptr<Listening>> Listening::Open(Plugin* plugin, int device) {
  std::unique_ptr<Listening> listening(new Listening(plugin, device));
  const std::uint64_t mark = PluginLogMark();
  void* comm = nullptr;  // undefined on failure
  const int outcome = plugin->driver().Listen(device, listening->handle_.data(), &comm);
  if (outcome != abi::kSuccess || comm == nullptr) {
    return plugin->CallError(Code::kUnavailable, fmt::format("listen on device {}", device),
                             outcome, mark, "see 'ferry doctor'");
  }
  listening->comm_ = comm;
  // The type is known from the device's properties before there is a connection: Accept() needs it
  // to decide whether to ask the plugin for a device handle.
  listening->device_handle_ = std::make_unique<abi::DeviceHandle>();
  const NicFacts& nic = plugin->nics()[static_cast<std::size_t>(device)];
  listening->device_handle_->type = nic.device_type;
  listening->device_handle_->version = nic.device_version;
  return listening;
}

Listening::~Listening() {
  if (comm_ == nullptr) return;
  const std::uint64_t mark = PluginLogMark();
  WarnIfFailed(*plugin_, "closeListen", plugin_->driver().CloseListen(comm_), mark);
}

Result<std::unique_ptr<ReceiveComm>> Listening::Accept() {
  FERRY_CHECK(device_handle_ != nullptr, device_);
  void* comm = nullptr;
  // As NCCL does: memory for a device handle tells the plugin that the caller can unpack.
  abi::DeviceHandle* device_handle =
      device_handle_->type == abi::kDeviceTypeUnpack ? device_handle_.get() : nullptr;
  const std::uint64_t mark = PluginLogMark();
  const int outcome = plugin_->driver().Accept(comm_, &comm, &device_handle);
  pending_ = outcome == abi::kSuccess && comm == nullptr;
  if (outcome != abi::kSuccess) {
    return plugin_->CallError(Code::kPeerLost, fmt::format("accept on device {}", device_), outcome,
                              mark, kReconnect);
  }
  if (comm == nullptr) return std::unique_ptr<ReceiveComm>();
  return std::make_unique<ReceiveComm>(plugin_, device_, comm, std::move(device_handle_));
}

Result<std::unique_ptr<SendComm>> Connecting::Connect() {
  void* comm = nullptr;
  abi::DeviceHandle* device_handle = nullptr;
  const std::uint64_t mark = PluginLogMark();
  const int outcome = plugin_->driver().Connect(device_, handle_.data(), &comm, &device_handle);
  pending_ = outcome == abi::kSuccess && comm == nullptr;
  if (outcome != abi::kSuccess) {
    return plugin_->CallError(Code::kPeerLost, fmt::format("connect from device {}", device_),
                              outcome, mark, kReconnect);
  }
  if (comm == nullptr) return std::unique_ptr<SendComm>();
  return std::make_unique<SendComm>(plugin_, device_, comm);
}

}  // namespace ferry::tcpx
