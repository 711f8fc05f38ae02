// Implements files and messages that `ferry transfer` carries through a plugin.

#include "ferry/tools/transfer/plugin.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kPieceOfPlugin = 32 * kMiB;
constexpr std::uint64_t kPiecesAtOnce = 2;
constexpr auto kControlTimeout = std::chrono::seconds(30);

// Bounded by the number of chunks of a message.
std::uint64_t MaxOfPiece(std::uint64_t chunk_bytes) {
  return std::min(kPieceOfPlugin, net::plugin::kMaxChunksOfMessage * chunk_bytes);
}

}  // namespace

Status CarriedFile::Open(std::span<std::byte> bytes) {
  FERRY_TRY_ASSIGN(file_window_,
                   FileWindow::Through(bytes, side_.memory, kPiecesAtOnce * piece_, *side_.config));
  FERRY_TRY_ASSIGN(
      carrier_, Carrier::Open(side_.options, file_window_.memory(), side_.memory, *side_.config));
  return Ok();
}

Result<std::unique_ptr<CarriedFile>> CarriedFile::Prepare(const Side& side,
                                                          std::span<std::byte> bytes) {
  const std::uint64_t piece =
      std::min<std::uint64_t>(bytes.size(), MaxOfPiece(side.options.stripe.chunk_bytes));
  std::unique_ptr<CarriedFile> file(new CarriedFile(side, piece, bytes.size()));
  FERRY_TRY(file->Open(bytes));
  return file;
}

Json CarriedFile::Question() const {
  return Json{{"channels", side_.options.stripe.channels},
              {"chunk", side_.options.stripe.chunk_bytes},
              {"piece", piece_}};
}

Status CarriedFile::Connect(const Json& answer) {
  FERRY_TRY_ASSIGN(const auto handles, HandlesField(answer));
  const Deadline deadline = Deadline::After(side_.config->connect_timeout);
  // The server may have ended for a reason of its own, and has said so: that explains more than the
  // plugin's error.
  if (Status connected = carrier_->Connect(handles, deadline); !connected) {
    return side_.control->CauseOf(std::move(connected));
  }
  FERRY_TRY(side_.control->HearAnswer(deadline));
  return Ok();
}

Result<std::unique_ptr<CarriedFile>> CarriedFile::Accept(const Side& side, const Json& question,
                                                         Json answer, std::span<std::byte> bytes) {
  Side agreed = side;
  FERRY_TRY_ASSIGN(agreed.options.stripe.channels,
                   BoundedField(question, "channels", 1, net::plugin::kMaxChannels));
  FERRY_TRY_ASSIGN(agreed.options.stripe.chunk_bytes,
                   BoundedField(question, "chunk", 1, net::plugin::kMaxChunkBytes));
  const std::uint64_t most = MaxOfPiece(agreed.options.stripe.chunk_bytes);
  FERRY_TRY_ASSIGN(const std::uint64_t piece, BoundedField(question, "piece", 1, most));
  std::unique_ptr<CarriedFile> file(new CarriedFile(agreed, piece, bytes.size()));
  FERRY_TRY(file->Open(bytes));
  FERRY_TRY(file->carrier_->Listen());
  answer["handles"] = HandlesToHex(file->carrier_->handles());
  FERRY_TRY(side.control->Say(answer, Deadline::After(kControlTimeout)));
  FERRY_TRY(file->carrier_->Accept(Deadline::After(side.config->connect_timeout)));
  FERRY_TRY(side.control->Say({{"ready", true}}, Deadline::After(kControlTimeout)));
  return file;
}

Carrier::Run CarriedFile::PieceAt(std::uint64_t at) const {
  Carrier::Run run;
  // The window is a ring of two pieces: one is carried while the other one is stored.
  run.offset = at % (kPiecesAtOnce * piece_);
  run.bytes = std::min(piece_, size_ - at);
  return run;
}

Status CarriedFile::Send() {
  ByteProgress progress(size_);
  std::uint64_t taken = 0;
  for (std::uint64_t at = 0; at < size_; at += piece_) {
    progress.Show(at);
    // The server says for each piece that it has been taken out; its place is free then.
    for (; at - taken >= kPiecesAtOnce * piece_; taken += piece_) {
      FERRY_TRY(side_.control->HearAnswer(Deadline::Never()));
    }
    const Carrier::Run piece = PieceAt(at);
    FERRY_TRY(file_window_.Load(at, piece.bytes));
    if (Status sent = carrier_->Send(piece, Deadline::Never()); !sent) {
      return side_.control->CauseOf(std::move(sent));
    }
  }
  for (; taken < size_; taken += piece_) {
    FERRY_TRY(side_.control->HearAnswer(Deadline::Never()));
  }
  return Ok();
}

Status CarriedFile::Receive() {
  for (std::uint64_t at = 0; at < size_; at += piece_) {
    const Carrier::Run piece = PieceAt(at);
    FERRY_TRY(carrier_->Receive(piece, Deadline::Never()));
    FERRY_TRY(file_window_.Store(at, piece.bytes));
    FERRY_TRY(side_.control->Say({{"taken", at + piece.bytes}}, Deadline::After(kControlTimeout)));
  }
  return Ok();
}

std::string CarriedFile::Describe() const {
  return fmt::format("{} ({}), {} channels, chunks of {}", plugin().name(), side_.options.plugin,
                     carrier_->channels(), FormatSize(side_.options.stripe.chunk_bytes));
}

}  // namespace ferry::tools
