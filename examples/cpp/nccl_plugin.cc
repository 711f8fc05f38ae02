// Uses an NCCL network plugin as NCCL does, by version 7 of its interface: lists its devices and
// moves a buffer between two comms of this process. usage: nccl_plugin PATH
// PATH: libnccl-net-ferry.so, or libnccl-net-tcpx-standin.so, which leaves messages in pieces.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/nccl_abi/abi_v7.h"
#include "ferry/tcpx/host/tcpx_layout.h"

namespace {

namespace abi = ferry::net::nccl_abi;
namespace tcpx = ferry::tcpx;
using ferry::Code, ferry::Error, ferry::Status;

constexpr int kBytes = 1 << 20;
alignas(tcpx::layout::kRegistrationAlignment) std::byte source[kBytes], target[kBytes];

void Log(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level == abi::kLogWarn) std::fprintf(stderr, "plugin warns: %s\n", format);
}

Status Check(const char* call, int outcome) {
  if (outcome == abi::kSuccess) return ferry::Ok();
  return Error(Code::kInternal, std::string(call) + " failed: " + abi::OutcomeName(outcome));
}

// Calls `step(&done)` until it is done: no call of a plugin blocks.
template <class Step>
Status Poll(const char* call, Step step) {
  const auto deadline = ferry::Deadline::After(std::chrono::seconds(30));
  for (bool done = false; !done;) {
    FERRY_TRY(Check(call, step(&done)));
    if (!done && deadline.expired()) return Error(Code::kTimedOut, call);
  }
  return ferry::Ok();
}

// Copies the first message, whose pieces are in row 0, from the pool. With GPUDirect-TCPX itself
// `device.handle` and the pool are GPU memory; the stand-in's are host memory.
Status Unpack(const abi::DeviceHandle& device) {
  const auto& handle = *static_cast<const tcpx::layout::UnpackHandle*>(device.handle);
  const std::uint64_t count = std::atomic_ref(handle.meta->counts[0]).load();
  if (count > tcpx::layout::kRowFragments) {
    return Error(Code::kCorrupt, "more pieces than a row has");
  }
  const tcpx::PostedRun all{0, kBytes};
  std::vector<ferry::Block> blocks;
  FERRY_TRY(tcpx::FragmentReader().Read({handle.meta->rows[0], count},
                                        {std::uint64_t{1} << 32, kBytes, {&all, 1}}, &blocks));
  for (const auto& [dst, src, len] : blocks) {
    std::memcpy(target + dst, handle.bounce_pool + src, len);
  }
  return ferry::Ok();
}

Status Move(const abi::TableV7& net, bool unpacks) {
  alignas(8) std::byte address[abi::kHandleBytes] = {};  // goes to the peer by any means
  abi::DeviceHandle device, *given = &device, *none = nullptr;
  void *listener = nullptr, *to = nullptr, *from = nullptr;
  FERRY_TRY(Check("listen", net.listen(0, address, &listener)));
  FERRY_TRY(Poll("connect or accept", [&](bool* done) {
    int outcome = to ? 0 : net.connect(0, address, &to, &none);
    if (!outcome && !from) outcome = net.accept(listener, &from, &given);
    *done = to && from;
    return outcome;
  }));
  const int kind = unpacks ? abi::kPointerCuda : abi::kPointerHost;
  void *out = nullptr, *in = nullptr, *send = nullptr, *receive = nullptr, *data = target;
  FERRY_TRY(Check("regMr", net.reg_mr(to, source, kBytes, kind, &out)));
  FERRY_TRY(Check("regMr", net.reg_mr(from, target, kBytes, kind, &in)));
  int sent = 0, received = 0, bytes = kBytes, tag = 0;
  FERRY_TRY(Poll("isend, irecv or test", [&](bool* done) {
    int outcome = receive ? 0 : net.irecv(from, 1, &data, &bytes, &tag, &in, &receive);
    if (!outcome && !send) outcome = net.isend(to, source, kBytes, tag, out, &send);
    if (!outcome && send && !sent) outcome = net.test(send, &sent, nullptr);
    if (!outcome && receive && !received) outcome = net.test(receive, &received, nullptr);
    *done = sent && received;
    return outcome;
  }));
  if (unpacks) FERRY_TRY(Unpack(device));
  if (unpacks) FERRY_TRY(Check("irecvConsumed", net.irecv_consumed(from, 1, receive)));
  FERRY_TRY(Check("deregMr", net.dereg_mr(to, out)));
  FERRY_TRY(Check("deregMr", net.dereg_mr(from, in)));
  FERRY_TRY(Check("closeSend", net.close_send(to)));
  FERRY_TRY(Check("closeRecv", net.close_recv(from)));
  return Check("closeListen", net.close_listen(listener));
}

Status Run(const char* path) {
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);  // for good: its threads go on
  void* const table = library == nullptr ? nullptr : ::dlsym(library, "ncclNetPlugin_v7");
  if (table == nullptr) return Error(Code::kUnsupported, ::dlerror());
  const auto& net = *static_cast<const abi::TableV7*>(table);
  FERRY_TRY(Check("init", net.init(Log)));
  int count = 0;
  FERRY_TRY(Check("devices", net.devices(&count)));
  abi::PropertiesV7 nic;
  for (int i = count; i-- > 0;) {  // device 0, which is used, last
    FERRY_TRY(Check("getProperties", net.get_properties(i, &nic)));
    std::printf("device %d of %s: %s, %d Mbit/s\n", i, net.name, nic.name, nic.speed);
  }
  if (count == 0) return Error(Code::kUnavailable, "the plugin has no devices");
  std::memset(source, 42, kBytes);
  FERRY_TRY(Move(net, nic.device_type == abi::kDeviceTypeUnpack));
  if (std::memcmp(source, target, kBytes) == 0) return ferry::Ok();
  return Error(Code::kCorrupt, "the bytes differ");
}

}  // namespace

int main(int count, char** arguments) {
  const Status status = count == 2 ? Run(arguments[1]) : Error(Code::kInvalidArgument, "no PATH");
  std::puts(status ? "the buffer was moved" : status.error().ToString().c_str());
  return status ? 0 : 1;
}
