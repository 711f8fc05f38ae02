#include <fmt/core.h>

#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/tools/cmd_transfer.h"
#include "ferry/tools/files.h"
#include "ferry/tools/operations.h"
#include "ferry/tools/process.h"
#include "ferry/tools/report.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kMaxMessage = 16 * kMiB;
constexpr auto kFirstRequest = std::chrono::seconds(10);
constexpr auto kGoodbye = std::chrono::seconds(2);

// One client's transfer.
class Reception {
 public:
  Reception(const TransferServerJob& job, transfer::Endpoint* endpoint,
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
  Status Offer(const IncomingFile& file);
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
};

void Reception::Say(std::string_view step) const {
  if (!job_.json) PrintLine(fmt::format("{}: {}", peer_, Printable(step)));
}

void Reception::Report(std::string_view kind, std::string_view name, std::uint64_t bytes,
                       const std::string& digest) const {
  if (!job_.json)
    return Say(fmt::format("done: {} bytes, SHA-256 {} on both sides", bytes, digest));
  PrintLine(DumpJson(Json{{"kind", kind},
                          {"name", name},
                          {"bytes", bytes},
                          {"sha256", digest},
                          {"identical", true},
                          {"peer", peer_}}));
}

Status Reception::Run() {
  Status taken = Take();
  if (!taken && !connection_.lost()) {
    (void)control_.Say(ErrorToJson(taken.error()), Deadline::After(kFirstRequest));
  }
  return taken;
}

Status Reception::Take() {
  FERRY_TRY_ASSIGN(const Json request, control_.Hear(Deadline::After(kFirstRequest)));
  if (request.contains("do")) {
    return Error(Code::kUnsupported, "a `ferry transfer server` listens there, not a perf server");
  }
  FERRY_TRY_ASSIGN(const std::string kind, TextField(request, "kind"));
  FERRY_TRY_ASSIGN(const std::uint64_t size, NumberField(request, "size"));
  if (kind == "file") return TakeFile(request, size);
  if (kind == "message") return TakeMessage(size);
  return Error(Code::kUnsupported,
               fmt::format("this server takes files and messages, not \"{}\"", kind));
}

Result<std::string> Reception::CompareDigests(std::span<const std::byte> bytes) {
  const std::string mine = Sha256(bytes);
  FERRY_TRY_ASSIGN(const Json message, control_.Hear(Deadline::Never()));
  FERRY_TRY_ASSIGN(const std::string theirs, TextField(message, "sha256"));
  if (mine == theirs) return mine;
  return Error(
      Code::kInternal,
      fmt::format("the bytes that arrived have SHA-256 {}, those that were sent {}", mine, theirs));
}

Status Reception::Answer(const std::string& digest) {
  FERRY_TRY(control_.Say({{"sha256", digest}}, Deadline::After(kFirstRequest)));
  (void)control_.Hear(Deadline::After(kGoodbye));
  return Ok();
}

// Until the client says that all bytes have landed.
Status Reception::Offer(const IncomingFile& file) {
  std::optional<transfer::Region> region;
  Json answer{{"ready", true}};
  if (!file.bytes().empty()) {
    FERRY_TRY_ASSIGN(auto registered, endpoint_->Register(file.bytes(), transfer::Rights::kWrite));
    region.emplace(std::move(registered));
    answer["key"] = ToHex(region->key());
  }
  FERRY_TRY(control_.Say(answer, Deadline::After(kFirstRequest)));
  FERRY_TRY_ASSIGN(const Json message, control_.Hear(Deadline::Never()));
  if (FlagField(message, "landed")) return Ok();
  return Error(Code::kCorrupt, "the client did not say that its file has landed");
}

Status Reception::TakeFile(const Json& request, std::uint64_t size) {
  FERRY_TRY_ASSIGN(const std::string path, TextField(request, "name"));
  FERRY_TRY_ASSIGN(const std::string name, BaseNameOf(path));
  Say(fmt::format("file {}, {}: reserving space in {}", name, FormatSize(size), job_.directory));
  FERRY_TRY_ASSIGN(IncomingFile file, IncomingFile::Create(job_.directory, name, size));
  FERRY_TRY(Offer(file));
  Say("all bytes are in place; writing them to the disk and hashing them");
  FERRY_TRY(file.Flush());
  FERRY_TRY_ASSIGN(const std::string digest, CompareDigests(file.bytes()));
  FERRY_TRY(file.Keep());
  FERRY_TRY(Answer(digest));
  Report("file", name, size, digest);
  return Ok();
}

Status Reception::TakeMessage(std::uint64_t size) {
  if (size > kMaxMessage) {
    return Error(Code::kUnavailable,
                 fmt::format("a message of {} bytes is more than the {} that are taken; send a "
                             "file",
                             size, FormatSize(kMaxMessage)));
  }
  std::vector<std::byte> message(size);
  InFlight receives;
  FERRY_TRY_ASSIGN(auto receive, connection_.Recv(kMessageTag, ~std::uint64_t{0}, message));
  receives.Add(std::move(receive));
  FERRY_TRY(control_.Say({{"ready", true}}, Deadline::After(kFirstRequest)));
  FERRY_TRY(receives.FinishOldest(Deadline::Never()));
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
    PrintLine(fmt::format("listening on {}, files go to {}; stop with Ctrl-C", address.ToString(),
                          job.directory));
  }
}

}  // namespace

Status RunTransferServer(const TransferServerJob& job) {
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  Announce(job, endpoint.port());
  while (!Interrupted()) {
    auto connection = AcceptNext(&endpoint);
    if (!connection) break;
    Status taken = Reception(job, &endpoint, *connection).Run();
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
