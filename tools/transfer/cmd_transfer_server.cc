// Server of `ferry transfer`: receives one file or message from each client, several at a time.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/loop/thread.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "tools/support/acceptor.h"
#include "tools/support/json.h"
#include "tools/support/operations.h"
#include "tools/support/process.h"
#include "tools/support/report.h"
#include "tools/transfer/cmd_transfer.h"
#include "tools/transfer/file_window.h"
#include "tools/transfer/files.h"
#include "tools/transfer/messages.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kMaxClients = 16;  // at a time: each takes a window of memory and a thread
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
        peer_(connection_.Info().peer),
        directory_(job.directory.value_or(".")) {}

  // Errors have been told to the client.
  Status Run();

 private:
  Status Take();
  Status TakeFile(const std::string& name, std::uint64_t size);
  Status TakeMessage(std::uint64_t size);
  Status ReceiveMessage(std::span<std::byte> message);
  Result<std::string> ReceiveFile(IncomingFile* file, std::uint64_t size);
  Status TakeOut(FileWindow* file_window, std::uint64_t size, const FileWindow::Drain& drain);
  Result<Json> Hear() { return control_.Hear(&*pace_); }
  Result<std::string> CompareDigests(std::string mine);
  Status Answer(const std::string& digest);
  void Say(std::string_view step) const;
  void Report(std::string_view kind, std::string_view name, std::uint64_t bytes,
              const std::string& digest) const;
  Status EndOrClose(Status taken);

  const TransferServerJob& job_;
  transfer::Endpoint* const endpoint_;
  transfer::Connection connection_;
  Control control_;
  const std::string peer_;
  const std::string directory_;
  std::string peer_memory_ = "host";
  std::optional<ReceivePace> pace_;  // from the request on
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
  FERRY_TRY_ASSIGN(const Json message, control_.Hear(Deadline::After(kControlWait)));
  FERRY_TRY_ASSIGN(const TransferRequest request,
                   ParseRequest(message, /*dot_files=*/job_.directory.has_value()));
  peer_memory_ = request.memory;
  pace_.emplace(connection_, job_.timeout);
  return request.file ? TakeFile(*request.file, request.size) : TakeMessage(request.size);
}

Result<std::string> IncomingTransfer::CompareDigests(std::string mine) {
  FERRY_TRY_ASSIGN(const Json message, Hear());
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

// A server that is interrupted closes the connection while its region and its receives are there:
// their end would refuse what the client sends, and the client would not learn that the server
// ends.
Status IncomingTransfer::EndOrClose(Status taken) {
  if (!taken && Interrupted()) connection_.Close();
  return taken;
}

// Until all bytes are in the file; the result is their digest.
Result<std::string> IncomingTransfer::ReceiveFile(IncomingFile* file, std::uint64_t size) {
  FERRY_TRY_ASSIGN(FileWindow file_window, FileWindow::Of(size, job_.memory, job_.config));
  std::optional<transfer::Region> region;
  Json answer{{"ready", true}, {"memory", job_.memory.ToString()}};
  if (size > 0) {
    FERRY_TRY_ASSIGN(auto registered,
                     endpoint_->Register(file_window.memory(), transfer::Rights::kNone));
    region.emplace(std::move(registered));
    // For this client only.
    FERRY_TRY_ASSIGN(const auto key, region->KeyFor(connection_.peer(), transfer::Rights::kWrite));
    answer["key"] = ToHex(key);
    answer["window"] = file_window.window();
  }
  FERRY_TRY(control_.Say(answer, Deadline::After(kControlWait)));
  Digest digest;
  FERRY_TRY(EndOrClose(TakeOut(&file_window, size, [&](std::uint64_t at, auto bytes) {
    digest.Add(bytes);
    return file->Write(at, bytes);
  })));
  return digest.Finish();
}

// Stores what the client has written from the window into the file, each time that it says how far
// it is; "landed" is the last time.
Status IncomingTransfer::TakeOut(FileWindow* file_window, std::uint64_t size,
                                 const FileWindow::Drain& drain) {
  for (std::uint64_t taken = 0;;) {
    FERRY_TRY_ASSIGN(const Json message, Hear());
    FERRY_TRY_ASSIGN(const TransferStep step,
                     ParseStep(message, taken, size, file_window->window()));
    FERRY_TRY(file_window->Store(taken, step.bytes - taken, drain));
    if (step.landed) return Ok();
    taken = step.bytes;
    FERRY_TRY(control_.Say({{"ready", true}}, Deadline::After(kControlWait)));
  }
}

Status IncomingTransfer::TakeFile(const std::string& name, std::uint64_t size) {
  Say(fmt::format("file {}, {}: receiving it into {}", name, FormatSize(size), directory_));
  const Existing existing = job_.overwrite ? Existing::kReplaced : Existing::kKept;
  FERRY_TRY_ASSIGN(IncomingFile file, IncomingFile::Create(directory_, name, size, existing));
  FERRY_TRY_ASSIGN(std::string digest, ReceiveFile(&file, size));
  Say("all bytes are here; writing them to the disk");
  FERRY_TRY_ASSIGN(digest, CompareDigests(std::move(digest)));
  // Before the answer: "done" means that the bytes and the name are on the disk. Only a file whose
  // digest is right gets its name; any other one vanishes with `file`.
  FERRY_TRY(file.Flush());
  FERRY_TRY(file.Keep());
  FERRY_TRY(Answer(digest));
  Report("file", name, size, digest);
  return Ok();
}

Status IncomingTransfer::ReceiveMessage(std::span<std::byte> message) {
  FERRY_TRY_ASSIGN(FileWindow file_window,
                   FileWindow::Of(message.size(), job_.memory, job_.config));
  InFlight receives;
  // Posted before the client is told to send.
  FERRY_TRY_ASSIGN(auto receive, connection_.Recv(kMessageTag, kWholeTag, file_window.memory()));
  receives.Add(std::move(receive));
  FERRY_TRY(control_.Say({{"ready", true}, {"memory", job_.memory.ToString()}},
                         Deadline::After(kControlWait)));
  FERRY_TRY(EndOrClose(pace_->Wait(receives.oldest())));
  return file_window.Store(0, message.size(), [&](std::uint64_t at, auto bytes) {
    std::copy(bytes.begin(), bytes.end(), message.begin() + static_cast<std::ptrdiff_t>(at));
    return Ok();
  });
}

Status IncomingTransfer::TakeMessage(std::uint64_t size) {
  std::vector<std::byte> message(size);
  FERRY_TRY(ReceiveMessage(message));
  FERRY_TRY_ASSIGN(const std::string digest, CompareDigests(Sha256(message)));
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
        "listening on {}, files go to {}{}; stop with Ctrl-C", address.ToString(),
        job.directory.value_or("."),
        job.memory.is_host() ? "" : fmt::format(" by way of {}", job.memory.ToString())));
  }
}

// Serves clients in threads, so that one does not wait for another.
class Clients {
 public:
  Clients(const TransferServerJob& job, transfer::Endpoint* endpoint)
      : job_(job), endpoint_(endpoint), acceptor_(endpoint) {}
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;
  ~Clients() {
    for (Client& client : serving_) client.thread.join();
  }

  // Until interrupted, or for one transfer.
  Status Serve();

 private:
  struct Client {
    std::thread thread;
    Status taken = Ok();
    std::atomic<bool> done = false;
  };

  Status Begin(transfer::Connection connection);
  void Run(transfer::Connection connection, Client* client) const;
  // Takes one client that has ended out of the list.
  std::optional<Status> TakeEnded();

  const TransferServerJob& job_;
  transfer::Endpoint* const endpoint_;
  Acceptor acceptor_;
  std::list<Client> serving_;  // ended ones too
};

void Clients::Run(transfer::Connection connection, Client* client) const {
  client->taken = IncomingTransfer(job_, endpoint_, connection).Run();
  const std::string peer = connection.Info().peer;
  connection.Close();
  if (!job_.once && !client->taken && !Interrupted()) {
    PrintNote(fmt::format("{}: {}", peer, Printable(client->taken.error().message())));
  }
  client->done.store(true, std::memory_order_release);
}

std::optional<Status> Clients::TakeEnded() {
  const auto ended = std::find_if(serving_.begin(), serving_.end(), [](const Client& client) {
    return client.done.load(std::memory_order_acquire);
  });
  if (ended == serving_.end()) return std::nullopt;
  ended->thread.join();
  Status taken = std::move(ended->taken);
  serving_.erase(ended);
  return taken;
}

Status Clients::Begin(transfer::Connection connection) {
  const std::size_t most = job_.once ? 1 : kMaxClients;
  if (serving_.size() >= most) {
    return Error(Code::kUnavailable,
                 job_.once ? "this server takes one transfer (--once), which another client has"
                           : fmt::format("this server serves {} clients at a time, and has them; "
                                         "try again later",
                                         most));
  }
  Client& client = serving_.emplace_back();
  auto thread =
      StartThread("a transfer", [this, connection, &client] { Run(connection, &client); });
  if (thread) {
    client.thread = *std::move(thread);
    return Ok();
  }
  serving_.pop_back();
  return thread.error();
}

Status Clients::Serve() {
  for (;;) {
    std::optional<Status> ended;
    const auto stop = [&] {
      ended = TakeEnded();
      return ended && job_.once;
    };
    auto connection = acceptor_.Next(stop);
    if (ended && job_.once) return *ended;
    if (!connection) return connection.error();
    while (!job_.once && TakeEnded()) {
    }
    const Status begun = Begin(*connection);
    if (!begun) acceptor_.Refuse(*std::move(connection), begun.error());
  }
}

}  // namespace

Status RunTransferServer(const TransferServerJob& job) {
  FERRY_TRY_ASSIGN(const auto current, job.memory.MakeCurrent(job.config));
  const std::string directory = job.directory.value_or(".");
  if (const Status usable = CheckFolder(directory); !usable) {
    return Error(usable.error().code(),
                 fmt::format("--dir {} cannot be used: {}; make the folder, or name another one",
                             directory, usable.error().message()));
  }
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  Announce(job, endpoint.port());
  const Status served = Clients(job, &endpoint).Serve();
  return job.once ? served : Ok();
}

}  // namespace ferry::tools
