#include "ferry/tools/cmd_transfer.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/tools/command.h"
#include "ferry/tools/files.h"
#include "ferry/tools/operations.h"
#include "ferry/tools/report.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kPieceBytes = 64 * kMiB;
constexpr std::size_t kPieces = 4;  // in flight
constexpr auto kAnswer = std::chrono::seconds(30);

// One transfer to the server.
class Delivery {
 public:
  Delivery(const TransferClientJob& job, transfer::Endpoint* endpoint,
           transfer::Connection connection)
      : job_(job), endpoint_(endpoint), connection_(std::move(connection)), control_(connection_) {}

  Status SendFile(const std::string& name, const SourceFile& file);
  Status SendMessage(const std::string& text);
  void DescribeTransport() const;

 private:
  Status WriteAll(const transfer::Region& region, const transfer::RemoteRegion& remote);
  Status CompareDigests(std::span<const std::byte> bytes);
  Status Finish(const char* kind, const std::string& name, std::span<const std::byte> bytes);
  void Say(std::string_view step) const {
    if (!job_.json) PrintLine(Printable(step));
  }

  const TransferClientJob& job_;
  transfer::Endpoint* const endpoint_;
  transfer::Connection connection_;
  Control control_;
  double seconds_ = 0;
  std::string digest_;
};

void Delivery::DescribeTransport() const {
  const auto info = connection_.Info();
  Say(fmt::format("connected to endpoint {} at {}", info.endpoint, info.peer));
  Say(
      fmt::format("transport {}: {} lanes, from host memory to host memory; this build has no "
                  "other provider",
                  info.provider, info.lanes.size()));
  for (std::size_t i = 0; i < info.lanes.size(); ++i) {
    const net::LaneInfo& lane = info.lanes[i];
    Say(
        fmt::format("  lane {}: {} to {} through {}, which has the route; congestion control {}; "
                    "buffers {} to send, {} to receive",
                    i, lane.local, lane.remote, lane.interface, lane.congestion_control,
                    FormatSize(lane.send_buffer_bytes), FormatSize(lane.recv_buffer_bytes)));
  }
}

Status Delivery::WriteAll(const transfer::Region& region, const transfer::RemoteRegion& remote) {
  const std::uint64_t size = region.memory().size();
  Progress progress;
  InFlight writes;
  std::uint64_t written = 0;
  for (std::uint64_t at = 0; at < size || writes.size() > 0;) {
    const std::uint64_t piece = std::min(kPieceBytes, size - at);
    if (piece > 0) {
      FERRY_TRY_ASSIGN(auto write, connection_.Write(region, at, remote, at, piece));
      writes.Add(std::move(write));
      at += piece;
      if (writes.size() < kPieces) continue;
    }
    FERRY_TRY(writes.FinishOldest(Deadline::Never()));
    written = std::min(written + kPieceBytes, size);
    progress.Show(fmt::format("{} of {} MiB ({} %)", written / kMiB, size / kMiB,
                              100 * (written / kMiB) / std::max<std::uint64_t>(size / kMiB, 1)));
  }
  return Ok();
}

Status Delivery::CompareDigests(std::span<const std::byte> bytes) {
  Say("hashing on both sides");
  digest_ = Sha256(bytes);
  FERRY_TRY(control_.Say({{"sha256", digest_}}, Deadline::After(kAnswer)));
  FERRY_TRY_ASSIGN(const Json answer, control_.HearAnswer(Deadline::Never()));
  (void)control_.Say({{"bye", true}}, Deadline::After(kAnswer));
  FERRY_TRY_ASSIGN(const std::string theirs, TextField(answer, "sha256"));
  Say(fmt::format("SHA-256 here  {}", digest_));
  Say(fmt::format("SHA-256 there {}", theirs));
  if (theirs == digest_) return Ok();
  return Error(Code::kInternal, "the bytes differ at the far side");
}

Status Delivery::Finish(const char* kind, const std::string& name,
                        std::span<const std::byte> bytes) {
  const double gbps = seconds_ > 0 ? static_cast<double>(bytes.size()) / seconds_ / 1e9 : 0;
  Say(fmt::format("moved {} bytes in {:.3f} ms, {:.3f} GB/s", bytes.size(), seconds_ * 1e3, gbps));
  FERRY_TRY(CompareDigests(bytes));
  Say("done: identical");
  if (!job_.json) return Ok();
  const auto info = connection_.Info();
  Json lanes = Json::array();
  for (const net::LaneInfo& lane : info.lanes) {
    lanes.push_back(Json{{"local", lane.local},
                         {"remote", lane.remote},
                         {"interface", lane.interface},
                         {"congestion_control", lane.congestion_control},
                         {"send_buffer_bytes", lane.send_buffer_bytes},
                         {"recv_buffer_bytes", lane.recv_buffer_bytes}});
  }
  PrintLine(DumpJson(Json{{"kind", kind},
                          {"name", name},
                          {"bytes", bytes.size()},
                          {"seconds", seconds_},
                          {"gbps", gbps},
                          {"sha256", digest_},
                          {"identical", true},
                          {"provider", info.provider},
                          {"lanes", std::move(lanes)}}));
  return Ok();
}

Status Delivery::SendFile(const std::string& name, const SourceFile& file) {
  Say(fmt::format("file {}, {} bytes: asking the server for room", name, file.bytes().size()));
  FERRY_TRY_ASSIGN(const Json answer,
                   control_.Ask({{"kind", "file"}, {"name", name}, {"size", file.bytes().size()}},
                                Deadline::After(kAnswer)));
  if (file.bytes().empty()) {
    Say("there are no bytes to move");
  } else {
    FERRY_TRY_ASSIGN(const auto key, BytesField(answer, "key"));
    FERRY_TRY_ASSIGN(const auto remote, connection_.Import(key));
    FERRY_TRY_ASSIGN(const auto region, endpoint_->Register(file.bytes(), transfer::Rights::kNone));
    Say("writing from the mapped file into the server's mapped file, one-sided");
    const auto begin = Clock::now();
    FERRY_TRY(WriteAll(region, remote));
    seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  FERRY_TRY(control_.Say({{"landed", true}}, Deadline::After(kAnswer)));
  return Finish("file", name, file.bytes());
}

Status Delivery::SendMessage(const std::string& text) {
  Say(fmt::format("message of {} bytes: sending it two-sided", text.size()));
  FERRY_TRY(control_.Ask({{"kind", "message"}, {"size", text.size()}}, Deadline::After(kAnswer)));
  const auto bytes = std::as_bytes(std::span(text));
  const auto begin = Clock::now();
  InFlight sends;
  FERRY_TRY_ASSIGN(auto send, connection_.Send(kMessageTag, bytes));
  sends.Add(std::move(send));
  FERRY_TRY(sends.FinishOldest(Deadline::Never()));
  seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  return Finish("message", "", bytes);
}

// The options as they were given.
struct Flags {
  std::string host;
  std::string listen;
  std::optional<std::uint16_t> port;
  std::string directory = ".";
  bool once = false;
  std::optional<std::string> file;
  std::string message;
  std::vector<std::string> settings;
};

Status RunServer(const Flags& flags, bool json) {
  TransferServerJob job;
  job.directory = flags.directory;
  job.once = flags.once;
  job.json = json;
  FERRY_TRY_ASSIGN(job.config, LoadConfig(flags.settings));
  if (!flags.listen.empty()) FERRY_TRY(job.config.Set("listen_host", flags.listen, "--listen"));
  if (flags.port || job.config.port_first == 0) {
    job.config.port_first = job.config.port_last = flags.port.value_or(kTransferPort);
  }
  return RunTransferServer(job);
}

Status RunClient(const Flags& flags, bool json) {
  TransferClientJob job;
  job.file = flags.file;
  job.message = flags.message;
  job.json = json;
  FERRY_TRY_ASSIGN(job.config, LoadConfig(flags.settings));
  FERRY_TRY_ASSIGN(const net::Address address,
                   net::ParseAddress(flags.host, flags.port.value_or(kTransferPort)));
  job.address = address.ToString();
  return RunTransferClient(job);
}

}  // namespace

Status RunTransferClient(const TransferClientJob& job) {
  std::optional<SourceFile> file;
  if (job.file) {
    FERRY_TRY_ASSIGN(auto opened, SourceFile::Open(*job.file));
    file.emplace(std::move(opened));
  }
  if (!job.json) PrintLine(fmt::format("connecting to {}", job.address));
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  FERRY_TRY_ASSIGN(auto connection,
                   ConnectTo(&endpoint, job.address, Deadline::After(job.config.connect_timeout)));
  Delivery delivery(job, &endpoint, connection);
  delivery.DescribeTransport();
  if (!file) return delivery.SendMessage(job.message);
  FERRY_TRY_ASSIGN(const std::string name, BaseNameOf(*job.file));
  return delivery.SendFile(name, *file);
}

void DeclareTransfer(CLI::App* app, Invocation* invocation) {
  app->require_subcommand(1);
  // Lives as long as the program: the parser writes into it, the chosen subcommand reads it.
  static Flags flags;

  CLI::App* const server = app->add_subcommand("server", "Take files and messages");
  server
      ->add_option("--dir", flags.directory, "Where files go; those of the same name are replaced")
      ->capture_default_str()
      ->type_name("DIR");
  server->add_option("--listen", flags.listen, "Address to listen on; default: all")
      ->type_name("HOST");
  server->add_flag("--once", flags.once, "End after one transfer, with its exit code");
  server->callback([invocation] {
    invocation->run = [invocation] { return RunServer(flags, invocation->json); };
  });

  CLI::App* const client = app->add_subcommand("client", "Deliver one file or message");
  client->add_option("host", flags.host, "The server")->type_name("HOST[:PORT]")->required();
  CLI::Option_group* const what = client->add_option_group("what to deliver");
  what->add_option("--file", flags.file, "A file")->type_name("FILE");
  what->add_option("--message", flags.message, "A text")->type_name("TEXT");
  what->require_option(1);
  client->callback([invocation] {
    invocation->run = [invocation] { return RunClient(flags, invocation->json); };
  });

  for (CLI::App* const side : {server, client}) {
    side->add_option("--port", flags.port,
                     fmt::format("Port of the server; default {}", kTransferPort))
        ->type_name("P");
    DeclareSettings(side, &flags.settings);
    DeclareJson(side, invocation);
  }
}

}  // namespace ferry::tools
