// Moves GPU memory through an NCCL network plugin that leaves messages in pieces, like
// GPUDirect-TCPX, without NCCL: one process sends, the other unpacks on a stream of its own.
//
//   tcpx_receive receive PLUGIN | ssh PEER tcpx_receive send PLUGIN
//
// The pipe carries the receiver's handle. PLUGIN may be libnccl-net-tcpx-standin.so, on one
// machine: on a GPU with FERRY_STANDIN_GPU=1, without one with FERRY_DEVICES=simulated:1:1:open.
// Exits with 77 where there is no GPU.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/registrable_memory.h"
#include "ferry/ferry.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/unpack_rows.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace {

namespace cuda = ferry::cuda;
namespace tcpx = ferry::tcpx;
using ferry::Code, ferry::Deadline, ferry::Error, ferry::Result, ferry::Status;
using tcpx::Plugin, tcpx::ReceiveComm, tcpx::Registration, tcpx::SendComm, tcpx::Unpacker;

constexpr int kGpu = 0;     // the GPU of this process
constexpr int kDevice = 0;  // the plugin's device
constexpr std::size_t kChunk = 512 << 10;
constexpr std::size_t kChunks = 64;
constexpr std::size_t kBytes = kChunks * kChunk;
constexpr int kTag = 42;  // the first chunk's tag

Deadline Soon() { return Deadline::After(std::chrono::seconds(30)); }

// Calls `step` until it is done: no call of a comm waits for the peer.
template <class Step>
Status Poll(const char* doing, Step step) {
  const Deadline deadline = Soon();
  while (true) {
    FERRY_TRY_ASSIGN(const bool done, step());
    if (done) return ferry::Ok();
    if (deadline.expired()) {
      return Error(Code::kTimedOut,
                   std::string(doing) + " did not end within 30 s; see what the other side prints");
    }
  }
}

void FillWithPattern(std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 7);
}

tcpx::Message ChunkOf(std::byte* memory, std::size_t chunk, const Registration& registration) {
  return {memory + chunk * kChunk, kChunk, kTag + static_cast<int>(chunk), registration.mr()};
}

Status Send(Plugin* plugin, cuda::DeviceApi* gpu) {
  FERRY_TRY_ASSIGN(const auto memory, cuda::AllocateRegistrable(gpu, kGpu, kBytes));
  FERRY_TRY_ASSIGN(const auto pattern, gpu->AllocatePinned(kGpu, kBytes));
  FERRY_TRY_ASSIGN(const auto stream, gpu->CreateStream(kGpu, cuda::StreamPriority::kNormal));
  FillWithPattern(pattern.bytes());
  const cuda::CopyItem fill{memory.data, pattern.data(), kBytes};
  FERRY_TRY(gpu->Copy(stream, cuda::CopyKind::kHostToDevice, {&fill, 1}));
  FERRY_TRY(gpu->Wait(stream, Soon()));

  tcpx::Handle handle;
  if (std::fread(handle.data(), 1, handle.size(), stdin) != handle.size()) {
    return Error(Code::kPeerLost, "stdin ended before the handle; see what the receiver prints");
  }
  tcpx::Connecting connecting(plugin, kDevice, handle);
  std::unique_ptr<SendComm> comm;
  FERRY_TRY(Poll("connecting", [&]() -> Result<bool> {
    FERRY_TRY_ASSIGN(comm, connecting.Connect());
    return comm != nullptr;
  }));
  FERRY_TRY_ASSIGN(const Registration registration, comm->Register(memory.data, kBytes, true));
  std::size_t begun = 0, done = 0;
  return Poll("sending", [&]() -> Result<bool> {
    if (begun < kChunks && comm->room() > 0) {
      FERRY_TRY_ASSIGN(const bool taken, comm->Send(ChunkOf(memory.data, begun, registration)));
      begun += taken ? 1 : 0;
    }
    FERRY_TRY_ASSIGN(const bool sent, comm->Test());
    done += sent ? 1 : 0;
    return done == kChunks;
  });
}

// Queues the copy of a message from the pool to `to`, and returns the ticket of its batch. Many
// messages may be one batch; here each is its own.
Result<std::uint64_t> Unpack(const tcpx::UnpackRows& rows, const ReceiveComm::Arrival& arrival,
                             std::byte* to, Unpacker* unpacker) {
  FERRY_TRY_ASSIGN(const auto fragments, rows.Read(arrival));
  const tcpx::PostedRun whole{0, kChunk};
  const tcpx::PostedReceive receive{rows.pool_bytes(), kChunk, {&whole, 1}};
  const ferry::Place place = ferry::Place::OnDevice(to);
  // The GPU reads and checks the rows itself, if it can.
  const tcpx::Fragment* const mapped = rows.mapped(fragments);
  if (unpacker->reads_rows() && mapped != nullptr) {
    const tcpx::RowsRequest request{mapped, fragments.size(), receive, place, rows.pool()};
    return unpacker->EnqueueRows({&request, 1});
  }
  std::vector<ferry::Block> blocks;
  FERRY_TRY(tcpx::FragmentReader().Read(fragments, receive, &blocks));
  const ferry::PlacedList list{blocks, place, rows.pool()};
  return unpacker->Enqueue({&list, 1});
}

Status ReceiveChunks(ReceiveComm* comm, std::byte* memory, const Registration& registration,
                     const tcpx::UnpackRows& rows, Unpacker* unpacker) {
  std::size_t begun = 0, arrived = 0, consumed = 0;
  std::deque<std::uint64_t> tickets;  // no more than the comm's window, for which there is room
  return Poll("receiving", [&]() -> Result<bool> {
    if (begun < kChunks && comm->room() > 0) {
      FERRY_TRY_ASSIGN(const bool taken, comm->Receive(ChunkOf(memory, begun, registration)));
      begun += taken ? 1 : 0;
    }
    FERRY_TRY_ASSIGN(const auto arrival, comm->Test());
    if (arrival.done) {
      FERRY_TRY_ASSIGN(const std::uint64_t ticket,
                       Unpack(rows, arrival, memory + arrived++ * kChunk, unpacker));
      tickets.push_back(ticket);
    }
    // Asks for the events behind the batches, without waiting. The pool is the plugin's again only
    // when the GPU has read it.
    FERRY_TRY_ASSIGN(const std::uint64_t completed, unpacker->Completed());
    for (; !tickets.empty() && tickets.front() <= completed; tickets.pop_front(), ++consumed) {
      for (const auto& refused : unpacker->TakeRefused(tickets.front())) return refused.error;
      FERRY_TRY(comm->Consume());
    }
    return consumed == kChunks;
  });
}

Status Receive(Plugin* plugin, cuda::DeviceApi* gpu) {
  FERRY_TRY_ASSIGN(const auto memory, cuda::AllocateRegistrable(gpu, kGpu, kBytes));
  FERRY_TRY_ASSIGN(const auto result, gpu->AllocatePinned(kGpu, kBytes));
  // For a cudaStream_t of your own: StreamRef::Foreign(ordinal, stream).
  FERRY_TRY_ASSIGN(const auto stream, gpu->CreateStream(kGpu, cuda::StreamPriority::kNormal));

  FERRY_TRY_ASSIGN(const auto listening, tcpx::Listening::Open(plugin, kDevice));
  const tcpx::Handle& handle = listening->handle();
  std::fwrite(handle.data(), 1, handle.size(), stdout);
  std::fflush(stdout);
  std::unique_ptr<ReceiveComm> comm;
  FERRY_TRY(Poll("accepting", [&]() -> Result<bool> {
    FERRY_TRY_ASSIGN(comm, listening->Accept());
    return comm != nullptr;
  }));
  FERRY_TRY_ASSIGN(const Registration registration, comm->Register(memory.data, kBytes, true));
  FERRY_TRY_ASSIGN(auto rows, tcpx::UnpackRows::Open(*comm, gpu, kGpu, Soon()));
  rows.Map(gpu, kGpu);
  FERRY_TRY_ASSIGN(
      const auto unpacker,
      Unpacker::Create(gpu, kGpu, {.kind = rows.copy_kind(), .stream = stream, .timing = true}));
  FERRY_TRY(ReceiveChunks(comm.get(), memory.data, registration, rows, unpacker.get()));

  // Stands for a kernel that uses the bytes: on the same stream, so it needs no event.
  const cuda::CopyItem fetch{result.data(), memory.data, kBytes};
  FERRY_TRY(gpu->Copy(stream, cuda::CopyKind::kDeviceToHost, {&fetch, 1}));
  FERRY_TRY(gpu->Wait(stream, Soon()));
  std::vector<std::byte> expected(kBytes);
  FillWithPattern(expected);
  if (std::memcmp(result.data(), expected.data(), kBytes) != 0) {
    return Error(Code::kCorrupt, "the bytes differ");
  }
  const tcpx::BatchTimes& times = unpacker->times();
  std::fprintf(stderr, "received %zu bytes; the GPU took %.1f us for each of %llu batches\n",
               kBytes,
               static_cast<double>(times.total.count()) / 1e3 / static_cast<double>(times.batches),
               static_cast<unsigned long long>(times.batches));
  return ferry::Ok();
}

Status Run(std::string_view role, const char* path, bool* skipped) {
  FERRY_TRY_ASSIGN(const ferry::Config config, ferry::Config::FromEnvironment());
  const auto gpu = ferry::cuda::OpenDevices(config);
  *skipped = !gpu;
  if (!gpu) return gpu.error();
  // Plugins ask CUDA which GPU is current.
  FERRY_TRY_ASSIGN(const auto current, (*gpu)->MakeCurrent(kGpu));
  FERRY_TRY_ASSIGN(Plugin* const plugin, Plugin::Open(path));
  return role == "send" ? Send(plugin, *gpu) : Receive(plugin, *gpu);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view role = count == 3 ? arguments[1] : "";
  if (role != "send" && role != "receive") {
    std::fputs("usage: tcpx_receive receive|send PLUGIN\n", stderr);
    return 2;
  }
  bool skipped = false;
  const Status status = Run(role, arguments[2], &skipped);
  if (!status) {
    std::fprintf(stderr, "%s%s\n", skipped ? "skipped: " : "", status.error().ToString().c_str());
  }
  return status ? 0 : skipped ? 77 : 1;
}
