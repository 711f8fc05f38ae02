// Server of `ferry transfer`: receives one file or message from each client.

#include <fmt/core.h>

#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/operations.h"
#include "ferry/tools/support/process.h"
#include "ferry/tools/support/report.h"
#include "ferry/tools/transfer/cmd_transfer.h"
#include "ferry/tools/transfer/file_window.h"
#include "ferry/tools/transfer/files.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kMaxMessage = 16 * kMiB;
constexpr auto kControlWait = std::chrono::seconds(10);
constexpr auto kGoodbye = std::chrono::seconds(2);

// One client's transfer.
class IncomingTransfer {
 public:
  IncomingTransfer(const TransferServerJob& job, transfer::Endpoint* endpoint,
                   transfer::Connection connection)
      : job_(job),
        endpoint_(endpoint),
        connection_(std::move(connection)),
        control_(connection_),
        peer_(connection_.Info().peer) {}

  // Errors have been told to the client.
  Status Run();

 private:
  Status Take();
  Status TakeFile(const Json& request, std::uint64_t size);
  Status TakeMessage(std::uint64_t size);
  Status ReceiveMessage(std::span<std::byte> message);
  Status Offer(const IncomingFile& file);
  Status TakeOut(FileWindow* file_window, std::uint64_t size);
  Result<std::string> CompareDigests(std::span<const std::byte> bytes);
  Status Answer(const std::string& digest);
  void Say(std::string_view step) const;
  void Report(std::string_view kind, std::string_view name, std::uint64_t bytes,
              const std::string& digest) const;

  const TransferServerJob& job_;
  transfer::Endpoint* const endpoint_;
  transfer::Connection connection_;
  Control control_;
  const std::string peer_;
  std::string peer_memory_ = "host";
};

void IncomingTransfer::Say(std::string_view step) const {
  if (!job_.json) PrintLine(fmt::format("{}: {}", peer_, Printable(step)));
}

void IncomingTransfer::Report(std::string_view kind, std::string_view name, std::uint64_t bytes,
                              const std::string& digest) const {
  if (!job_.json)
    return Say(fmt::format("done: {} bytes from {} to {} memory, SHA-256 {} on both sides", bytes,
                           peer_memory_, job_.memory.ToString(), digest));
  PrintLine(DumpJson(Json{{"kind", kind},
                          {"name", name},
                          {"bytes", bytes},
                          {"sha256", digest},
                          {"identical", true},
                          {"memory", job_.memory.ToString()},
                          {"peer_memory", peer_memory_},
                          {"peer", peer_}}));
}

Status IncomingTransfer::Run() {
  Status taken = Take();
  if (!taken && !connection_.lost()) {
    (void)control_.Say(ErrorToJson(taken.error()), Deadline::After(kControlWait));
    // Until it has been heard: what has come is gone when the connection ends.
    (void)control_.Hear(Deadline::After(kGoodbye));
  }
  return taken;
}

Status IncomingTransfer::Take() {
  FERRY_TRY_ASSIGN(const Json request, control_.Hear(Deadline::After(kControlWait)));
  if (request.contains("do")) {
    return Error(Code::kUnsupported, "a `ferry transfer server` listens there, not a perf server");
  }
  FERRY_TRY_ASSIGN(const std::string kind, TextField(request, "kind"));
  FERRY_TRY_ASSIGN(const std::uint64_t size, NumberField(request, "size"));
  FERRY_TRY_ASSIGN(peer_memory_, MemoryField(request));
  if (kind == "file") return TakeFile(request, size);
  if (kind == "message") return TakeMessage(size);
  return Error(Code::kUnsupported,
               fmt::format("this server takes files and messages, not \"{}\"", kind));
}

Result<std::string> IncomingTransfer::CompareDigests(std::span<const std::byte> bytes) {
  const std::string mine = Sha256(bytes);
  FERRY_TRY_ASSIGN(const Json message, control_.Hear(Deadline::Never()));
  FERRY_TRY_ASSIGN(const std::string theirs, TextField(message, "sha256"));
  if (mine == theirs) return mine;
  return Error(
      Code::kInternal,
      fmt::format("the bytes that arrived have SHA-256 {}, those that were sent {}", mine, theirs));
}

Status IncomingTransfer::Answer(const std::string& digest) {
  FERRY_TRY(control_.Say({{"sha256", digest}}, Deadline::After(kControlWait)));
  (void)control_.Hear(Deadline::After(kGoodbye));
  return Ok();
}

// Until all bytes are in the file.
Status IncomingTransfer::Offer(const IncomingFile& file) {
  FERRY_TRY_ASSIGN(FileWindow file_window, FileWindow::Of(file.bytes(), job_.memory, job_.config));
  std::optional<transfer::Region> region;
  Json answer{{"ready", true}, {"memory", job_.memory.ToString()}};
  if (!file.bytes().empty()) {
    FERRY_TRY_ASSIGN(auto registered,
                     endpoint_->Register(file_window.memory(), transfer::Rights::kWrite));
    region.emplace(std::move(registered));
    answer["key"] = ToHex(region->key());
    answer["window"] = file_window.window();
  }
  FERRY_TRY(control_.Say(answer, Deadline::After(kControlWait)));
  return TakeOut(&file_window, file.bytes().size());
}

// As the client says that they have come.
// Stores what the client has written from the window into the file, each time that it says how far
// it is; "landed" is the last time.
Status IncomingTransfer::TakeOut(FileWindow* file_window, std::uint64_t size) {
  for (std::uint64_t taken = 0;;) {
    FERRY_TRY_ASSIGN(const Json message, control_.Hear(Deadline::Never()));
    const bool landed = FlagField(message, "landed");
    std::uint64_t written = size;
    if (!landed) {
      FERRY_TRY_ASSIGN(written, NumberField(message, "written"));
    }
    // The numbers are a client's, and must not lead beyond the window or the file.
    if (written < taken || written > size || written - taken > file_window->window()) {
      return Error(Code::kCorrupt,
                   fmt::format("the client says that {} of {} bytes are written, of which {} have "
                               "been taken out of a window of {}; use the same version of ferry on "
                               "both sides",
                               written, size, taken, file_window->window()));
    }
    FERRY_TRY(file_window->Store(taken, written - taken));
    if (landed) return Ok();
    taken = written;
    FERRY_TRY(control_.Say({{"ready", true}}, Deadline::After(kControlWait)));
  }
}

Status IncomingTransfer::TakeFile(const Json& request, std::uint64_t size) {
  FERRY_TRY_ASSIGN(const std::string path, TextField(request, "name"));
  FERRY_TRY_ASSIGN(const std::string name, BaseNameOf(path));
  Say(fmt::format("file {}, {}: reserving space in {}", name, FormatSize(size), job_.directory));
  FERRY_TRY_ASSIGN(IncomingFile file, IncomingFile::Create(job_.directory, name, size));
  FERRY_TRY(Offer(file));
  Say("all bytes are in place; writing them to the disk and hashing them");
  // Before the digests are compared: "done" means that the bytes are on the disk.
  FERRY_TRY(file.Flush());
  FERRY_TRY_ASSIGN(const std::string digest, CompareDigests(file.bytes()));
  // Only a file whose digest is right gets its name; any other one vanishes with `file`.
  FERRY_TRY(file.Keep());
  FERRY_TRY(Answer(digest));
  Report("file", name, size, digest);
  return Ok();
}

Status IncomingTransfer::ReceiveMessage(std::span<std::byte> message) {
  FERRY_TRY_ASSIGN(FileWindow file_window, FileWindow::Of(message, job_.memory, job_.config));
  InFlight receives;
  // Posted before the client is told to send.
  FERRY_TRY_ASSIGN(auto receive, connection_.Recv(kMessageTag, kWholeTag, file_window.memory()));
  receives.Add(std::move(receive));
  FERRY_TRY(control_.Say({{"ready", true}, {"memory", job_.memory.ToString()}},
                         Deadline::After(kControlWait)));
  FERRY_TRY(receives.FinishOldest(Deadline::Never()));
  return file_window.Store(0, message.size());
}

Status IncomingTransfer::TakeMessage(std::uint64_t size) {
  if (size > kMaxMessage) {
    return Error(Code::kUnavailable,
                 fmt::format("a message of {} bytes is more than the {} that are taken; send a "
                             "file",
                             size, FormatSize(kMaxMessage)));
  }
  std::vector<std::byte> message(size);
  FERRY_TRY(ReceiveMessage(message));
  FERRY_TRY_ASSIGN(const std::string digest, CompareDigests(message));
  FERRY_TRY(Answer(digest));
  std::string text(size, '\0');
  std::transform(message.begin(), message.end(), text.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  Say(fmt::format("message: {}", text));
  Report("message", text, size, digest);
  return Ok();
}

void Announce(const TransferServerJob& job, std::uint16_t port) {
  const net::Address address{job.config.listen_host, port};
  if (job.json) {
    PrintLine(DumpJson(Json{{"listening", address.ToString()}, {"port", port}}));
  } else {
    PrintLine(fmt::format(
        "listening on {}, files go to {}{}; stop with Ctrl-C", address.ToString(), job.directory,
        job.memory.is_host() ? "" : fmt::format(" by way of {}", job.memory.ToString())));
  }
}

}  // namespace

Status RunTransferServer(const TransferServerJob& job) {
  FERRY_TRY(job.memory.Open(job.config));
  if (const Status usable = CheckFolder(job.directory); !usable) {
    return Error(usable.error().code(),
                 fmt::format("--dir {} cannot be used: {}; make the folder, or name another one",
                             job.directory, usable.error().message()));
  }
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  Announce(job, endpoint.port());
  while (!Interrupted()) {
    auto connection = AcceptNext(&endpoint);
    if (!connection && job.once) return connection.error();
    if (!connection) break;
    Status taken = IncomingTransfer(job, &endpoint, *connection).Run();
    const std::string peer = connection->Info().peer;
    connection->Close();
    if (job.once) return taken;
    if (!taken && !Interrupted()) {
      PrintNote(fmt::format("{}: {}", peer, Printable(taken.error().message())));
    }
  }
  return Ok();
}

}  // namespace ferry::tools
