// Command line and client of `ferry transfer`.

#include "tools/transfer/cmd_transfer.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "tools/support/command.h"
#include "tools/support/json.h"
#include "tools/support/operations.h"
#include "tools/support/report.h"
#include "tools/transfer/file_window.h"
#include "tools/transfer/files.h"
#include "tools/transfer/messages.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kPieces = 4;  // in flight
constexpr auto kAnswer = std::chrono::seconds(30);

// Writes a file piece by piece from one window into another.
class PieceWriter {
 public:
  // `remote` holds `window` bytes of the file's `size`, and `region` is what passes through here,
  // from `source`.
  struct Way {
    FileWindow* file_window = nullptr;
    const FileWindow::Fill* source = nullptr;
    const transfer::Region* region = nullptr;
    const transfer::RemoteRegion* remote = nullptr;
    std::uint64_t window = 0;
    std::uint64_t size = 0;
  };
  PieceWriter(const Way& way, transfer::Connection connection, Control* control)
      : way_(way),
        connection_(std::move(connection)),
        control_(control),
        sent_before_(PayloadSent()),
        progress_(way.size) {}

  Status Run();

 private:
  std::uint64_t NextPiece() const;
  std::uint64_t PayloadSent() const {
    return connection_.Counters().traffic.lanes.payload_bytes_sent;
  }
  Status MakeRoom(std::uint64_t piece);
  Status FinishOldest();

  const Way way_;
  transfer::Connection connection_;
  Control* const control_;
  const std::uint64_t sent_before_;  // by the connection
  ByteProgress progress_;
  InFlight writes_;
  std::deque<std::uint64_t> ends_;  // in the file, of writes_
  std::uint64_t posted_ = 0;        // of the file's bytes, as are the next two
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;  // out of the far window
};

// No piece crosses the end of a window on either side, as windows are rings over the file's bytes.
std::uint64_t PieceWriter::NextPiece() const {
  const std::uint64_t here = way_.file_window->window();
  // In a window that is reused, some pieces are written while others are taken out.
  const std::uint64_t share =
      way_.window < way_.size ? std::max<std::uint64_t>(way_.window / kPieces, 1) : way_.size;
  return std::min({way_.file_window->piece_bytes(), share, way_.size - posted_,
                   here - posted_ % here, way_.window - posted_ % way_.window});
}

Status PieceWriter::FinishOldest() {
  // Part of the bytes not yet written has been sent; copies between GPUs send nothing.
  const auto show = [this] { progress_.Show(std::max(written_, PayloadSent() - sent_before_)); };
  FERRY_TRY(writes_.FinishOldest(Deadline::Never(), show));
  written_ = ends_.front();
  ends_.pop_front();
  show();
  return Ok();
}

// Room in three senses: for one more write in flight, in the window here, whose bytes must have
// been written before they are replaced, and in the far window, whose bytes the server must have
// stored.
Status PieceWriter::MakeRoom(std::uint64_t piece) {
  const std::uint64_t end = posted_ + piece;
  while (writes_.size() == kPieces || end > written_ + way_.file_window->window()) {
    FERRY_TRY(FinishOldest());
  }
  while (end > taken_ + way_.window) {
    if (written_ == taken_) {
      FERRY_TRY(FinishOldest());
      continue;
    }
    // The server stores what is written and answers; until then its part of the window is in use.
    FERRY_TRY(control_->Say({{"written", written_}}, Deadline::After(kAnswer)));
    FERRY_TRY(control_->HearAnswer(Deadline::Never()));
    taken_ = written_;
  }
  return Ok();
}

Status PieceWriter::Run() {
  while (posted_ < way_.size) {
    const std::uint64_t piece = NextPiece();
    FERRY_TRY(MakeRoom(piece));
    FERRY_TRY(way_.file_window->Load(posted_, piece, *way_.source));
    FERRY_TRY_ASSIGN(auto write,
                     connection_.Write(*way_.region, posted_ % way_.file_window->window(),
                                       *way_.remote, posted_ % way_.window, piece));
    writes_.Add(std::move(write));
    posted_ += piece;
    ends_.push_back(posted_);
  }
  while (writes_.size() > 0) FERRY_TRY(FinishOldest());
  return Ok();
}

// One transfer to the server.
class Delivery {
 public:
  Delivery(const TransferClientJob& job, transfer::Endpoint* endpoint,
           transfer::Connection connection)
      : job_(job), endpoint_(endpoint), connection_(std::move(connection)), control_(connection_) {}

  // The bytes pass through `file_window`.
  Status SendFile(const std::string& name, const SourceFile& file, FileWindow* file_window);
  Status SendMessage(std::string_view text, FileWindow* file_window);
  void DescribeTransport() const;

 private:
  Result<Json> Ask(Json question);
  // What `source` reads, which is also hashed.
  FileWindow::Fill Hashed(FileWindow::Fill source);
  Status WriteAll(const Json& answer, FileWindow* file_window, const SourceFile& file);
  Status CompareDigests();
  Status Finish(const char* kind, const std::string& name, std::uint64_t bytes);
  void Say(std::string_view step) const {
    if (!job_.json) PrintLine(Printable(step));
  }

  const TransferClientJob& job_;
  transfer::Endpoint* const endpoint_;
  transfer::Connection connection_;
  Control control_;
  std::string peer_memory_ = "host";
  double seconds_ = 0;
  Digest hash_;  // of what has been read so far
  std::string digest_;
};

void Delivery::DescribeTransport() const {
  const auto info = connection_.Info();
  Say(fmt::format("connected to endpoint {} at {}", info.endpoint, info.peer));
  Say(fmt::format("transport {}: {} lanes", info.provider, info.lanes.size()));
  for (std::size_t i = 0; i < info.lanes.size(); ++i) {
    const net::LaneInfo& lane = info.lanes[i];
    Say(fmt::format(
        "  lane {}: {} to {} through {}, which has the route; congestion control {}; "
        "security {}; buffers {} to send, {} to receive",
        i, lane.local, lane.remote, lane.interface, lane.congestion_control, lane.security,
        FormatSize(lane.send_buffer_bytes), FormatSize(lane.recv_buffer_bytes)));
  }
}

// Tells the server which memory this side uses, and hears of its own.
Result<Json> Delivery::Ask(Json question) {
  question["memory"] = job_.memory.ToString();
  FERRY_TRY_ASSIGN(Json answer, control_.Ask(question, Deadline::After(kAnswer)));
  FERRY_TRY_ASSIGN(peer_memory_, MemoryField(answer));
  return answer;
}

FileWindow::Fill Delivery::Hashed(FileWindow::Fill source) {
  return [this, source = std::move(source)](std::uint64_t at, std::span<std::byte> into) -> Status {
    FERRY_TRY(source(at, into));
    hash_.Add(into);
    return Ok();
  };
}

Status Delivery::WriteAll(const Json& answer, FileWindow* file_window, const SourceFile& file) {
  // The server's answer is not trusted: it would make NextPiece() loop or overflow.
  FERRY_TRY_ASSIGN(const TransferAnswer offer, ParseAnswer(answer, file.size()));
  FERRY_TRY_ASSIGN(const auto remote, connection_.Import(offer.key));
  FERRY_TRY_ASSIGN(const auto region,
                   endpoint_->Register(file_window->memory(), transfer::Rights::kNone));
  Say(fmt::format("writing through {} on {} into {} on the server's {}, one-sided",
                  FormatSize(file_window->window()), job_.memory.ToString(),
                  FormatSize(offer.window), peer_memory_));
  const auto source = Hashed([&file](std::uint64_t at, std::span<std::byte> into) -> Status {
    FERRY_TRY(file.CheckUnchanged());
    return file.Read(at, into);
  });
  const auto begin = Clock::now();
  FERRY_TRY(PieceWriter({file_window, &source, &region, &remote, offer.window, file.size()},
                        connection_, &control_)
                .Run());
  seconds_ = Seconds(Clock::now() - begin);
  return Ok();
}

Status Delivery::CompareDigests() {
  digest_ = hash_.Finish();
  FERRY_TRY(control_.Say({{"sha256", digest_}}, Deadline::After(kAnswer)));
  // A disk takes as long as it takes; a lost connection ends the wait.
  FERRY_TRY_ASSIGN(const Json answer, control_.HearAnswer(Deadline::Never()));
  // The server waits for it, so that its answer is not lost with the connection.
  (void)control_.Say({{"bye", true}}, Deadline::After(kAnswer));
  FERRY_TRY_ASSIGN(const std::string theirs, TextField(answer, "sha256"));
  Say(fmt::format("SHA-256 here  {}", digest_));
  Say(fmt::format("SHA-256 there {}", theirs));
  if (theirs == digest_) return Ok();
  return Error(Code::kInternal, "the bytes at the receiver differ from those sent");
}

Status Delivery::Finish(const char* kind, const std::string& name, std::uint64_t bytes) {
  const double gbps = seconds_ > 0 ? static_cast<double>(bytes) / seconds_ / 1e9 : 0;
  Say(fmt::format("moved {} bytes from {} to {} memory in {:.3f} ms, {:.3f} GB/s", bytes,
                  job_.memory.ToString(), peer_memory_, seconds_ * 1e3, gbps));
  FERRY_TRY(CompareDigests());
  Say("done: identical");
  if (!job_.json) return Ok();
  const auto info = connection_.Info();
  Json lanes = Json::array();
  for (const net::LaneInfo& lane : info.lanes) {
    lanes.push_back(Json{{"local", lane.local},
                         {"remote", lane.remote},
                         {"interface", lane.interface},
                         {"congestion_control", lane.congestion_control},
                         {"security", lane.security},
                         {"send_buffer_bytes", lane.send_buffer_bytes},
                         {"recv_buffer_bytes", lane.recv_buffer_bytes}});
  }
  PrintLine(DumpJson(Json{{"kind", kind},
                          {"name", name},
                          {"bytes", bytes},
                          {"seconds", seconds_},
                          {"gbps", gbps},
                          {"sha256", digest_},
                          {"identical", true},
                          {"memory", job_.memory.ToString()},
                          {"peer_memory", peer_memory_},
                          {"provider", info.provider},
                          {"lanes", std::move(lanes)}}));
  return Ok();
}

Status Delivery::SendFile(const std::string& name, const SourceFile& file,
                          FileWindow* file_window) {
  Say(fmt::format("file {}, {} bytes: asking the server for room", name, file.size()));
  FERRY_TRY_ASSIGN(const Json answer,
                   Ask({{"kind", "file"}, {"name", name}, {"size", file.size()}}));
  if (file.size() == 0) {
    Say("there are no bytes to move");
  } else {
    FERRY_TRY(WriteAll(answer, file_window, file));
  }
  // The digest is that of the bytes that were read, which need not have been one state of the file.
  FERRY_TRY(file.CheckUnchanged());
  FERRY_TRY(control_.Say({{"landed", true}}, Deadline::After(kAnswer)));
  return Finish("file", name, file.size());
}

Status Delivery::SendMessage(std::string_view text, FileWindow* file_window) {
  Say(fmt::format("message of {} bytes: sending it two-sided", text.size()));
  FERRY_TRY(Ask({{"kind", "message"}, {"size", text.size()}}));
  const auto source = Hashed([text](std::uint64_t at, std::span<std::byte> into) {
    std::memcpy(into.data(), text.data() + at, into.size());
    return Ok();
  });
  FERRY_TRY(file_window->Load(0, text.size(), source));
  const auto begin = Clock::now();
  InFlight sends;
  // The text goes the way that a file goes, also where a plugin sends small messages beside it.
  FERRY_TRY_ASSIGN(auto send,
                   connection_.Send(kMessageTag, file_window->memory(), {.rendezvous = true}));
  sends.Add(std::move(send));
  FERRY_TRY(sends.FinishOldest(Deadline::Never()));
  seconds_ = Seconds(Clock::now() - begin);
  return Finish("message", "", text.size());
}

// The options as they were given.
struct TransferFlags {
  std::string host;
  std::string listen;
  std::optional<std::uint16_t> port;
  std::optional<std::string> directory;
  bool overwrite = false;
  bool once = false;
  std::string timeout = "30s";
  std::optional<std::string> file;
  std::string message;
  std::string memory = "host";
  std::vector<std::string> settings;
};

Status StartTransferServer(const TransferFlags& flags, bool json) {
  TransferServerJob job;
  job.directory = flags.directory;
  job.overwrite = flags.overwrite;
  job.once = flags.once;
  job.json = json;
  FERRY_TRY_ASSIGN(job.timeout, ParseDuration(flags.timeout));
  if (job.timeout.count() <= 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("--timeout {} cannot be used; give a time above 0", flags.timeout));
  }
  FERRY_TRY_ASSIGN(job.memory, MemoryChoice::Parse(flags.memory));
  FERRY_TRY_ASSIGN(job.config, LoadConfig(flags.settings));
  if (!flags.listen.empty()) FERRY_TRY(job.config.Set("listen_host", flags.listen, "--listen"));
  if (flags.port || job.config.port_first == 0) {
    job.config.port_first = job.config.port_last = flags.port.value_or(kTransferPort);
  }
  return RunTransferServer(job);
}

Status StartTransferClient(const TransferFlags& flags, bool json) {
  TransferClientJob job;
  job.file = flags.file;
  job.message = flags.message;
  job.json = json;
  FERRY_TRY_ASSIGN(job.memory, MemoryChoice::Parse(flags.memory));
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
  const std::uint64_t size = file ? file->size() : job.message.size();
  FERRY_TRY_ASSIGN(FileWindow file_window, FileWindow::Of(size, job.memory, job.config));
  if (!job.json) PrintLine(fmt::format("connecting to {}", job.address));
  FERRY_TRY_ASSIGN(const auto current, job.memory.MakeCurrent(job.config));
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  FERRY_TRY_ASSIGN(auto connection,
                   ConnectTo(&endpoint, job.address, Deadline::After(job.config.connect_timeout)));
  Delivery delivery(job, &endpoint, connection);
  delivery.DescribeTransport();
  if (!file) return delivery.SendMessage(job.message, &file_window);
  FERRY_TRY_ASSIGN(const std::string name, BaseNameOf(*job.file));
  return delivery.SendFile(name, *file, &file_window);
}

void DeclareTransfer(CLI::App* app, Invocation* invocation) {
  app->require_subcommand(1);
  // Lives as long as the program: the parser writes into it, the chosen subcommand reads it. Each
  // declaration begins with the defaults.
  static TransferFlags flags;
  flags = TransferFlags();

  CLI::App* const server = app->add_subcommand("server", "Receive files and messages");
  server
      ->add_option("--dir", flags.directory,
                   "Folder for received files; default: the current one, without names that begin "
                   "with a dot")
      ->type_name("DIR");
  server->add_flag("--overwrite", flags.overwrite, "Replace existing files of the same name");
  server
      ->add_option("--timeout", flags.timeout,
                   "Drop a client that sends less than 8 KiB/s, on average over this long")
      ->capture_default_str()
      ->type_name("TIME");
  server->add_option("--listen", flags.listen, "Address to listen on; default: all")
      ->type_name("HOST");
  server->add_flag("--once", flags.once, "End after one transfer, with its exit code");
  server->callback([invocation] {
    invocation->run = [invocation] { return StartTransferServer(flags, invocation->json); };
  });

  CLI::App* const client = app->add_subcommand("client", "Send one file or message");
  client->add_option("host", flags.host, "The server")->type_name("HOST[:PORT]")->required();
  CLI::Option_group* const what = client->add_option_group("what to send");
  what->add_option("--file", flags.file, "A file")->type_name("FILE");
  what->add_option("--message", flags.message, "A text")->type_name("TEXT");
  what->require_option(1);
  client->callback([invocation] {
    invocation->run = [invocation] { return StartTransferClient(flags, invocation->json); };
  });

  for (CLI::App* const side : {server, client}) {
    side->add_option("--port", flags.port,
                     fmt::format("Port of the server; default {}", kTransferPort))
        ->type_name("P");
    side->add_option(
            "--memory", flags.memory,
            fmt::format("{}; of this side. A GPU holds at most {} at a time of what passes "
                        "it, whatever the file's size",
                        kMemoryForms, FormatSize(kGpuWindowBytes)))
        ->capture_default_str()
        ->type_name("KIND");
    DeclarePeerSettings(side, &flags.settings);
    DeclareProviderSettings(side, &flags.settings);
    DeclareJson(side, invocation);
  }
}

}  // namespace ferry::tools
