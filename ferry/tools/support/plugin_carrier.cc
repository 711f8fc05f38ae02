// Implements transfers of one memory through an NCCL network plugin.

#include "ferry/tools/support/plugin_carrier.h"

#include <fmt/core.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/core/units.h"
#include "ferry/net/plugin/plugin_path.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/process.h"

namespace ferry::tools {
namespace {

using net::plugin::Handle;
using net::plugin::InStripe;
using net::plugin::NicFacts;
using net::plugin::OutStripe;
using net::plugin::Plugin;

constexpr std::string_view kPluginProvider = "plugin";
constexpr std::size_t kToldBytes = 16;
constexpr std::chrono::seconds kReadTimeout{1};

// A value and its source, an option or a variable; empty if neither is set.
struct Said {
  std::string text;
  std::string by;
};
// The option wins. Its name is kept for errors.
Said SaidBy(const std::string& flag, const char* option, const char* variable) {
  if (!flag.empty()) return {flag, option};
  const char* const value = std::getenv(variable);
  return value == nullptr ? Said() : Said{value, variable};
}

Error Unknown(const Said& said, const char* remedy) {
  return Error(Code::kInvalidArgument,
               fmt::format("{} {} cannot be used; {}", said.by, said.text, remedy));
}

Result<std::optional<UnpackBy>> ParseUnpack(const Said& said) {
  if (said.text.empty()) return std::optional<UnpackBy>();
  if (said.text == "kernel") return std::optional(UnpackBy::kKernel);
  if (said.text == "dma" || said.text == "d2d") return std::optional(UnpackBy::kDma);
  if (said.text == "host") return std::optional(UnpackBy::kHost);
  return Unknown(said, "choose kernel, dma or host");
}

Result<std::uint64_t> ParseAmount(const Said& said, std::uint64_t usual) {
  if (said.text.empty()) return usual;
  const auto amount = ParseSize(said.text);
  if (!amount) return Unknown(said, "give a number, like 4 or 512KiB");
  return *amount;
}

Result<std::string> PluginOf(std::string_view provider, const Config& config) {
  if (provider.size() > kPluginProvider.size()) {
    return std::string(provider.substr(kPluginProvider.size() + 1));
  }
  const auto found = net::plugin::FindPluginPath(config);
  return found.path.empty() ? net::plugin::kUsualPluginPath : found.path;
}

void Tell(const std::string& step) { Log(LogLevel::kInfo, "plugin", "{}", step); }

std::string Places(std::span<const Fragment> fragments) {
  std::string text;
  for (const Fragment& one : fragments.first(std::min<std::size_t>(fragments.size(), 3))) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} bytes at {} of the pool to {}", one.len, one.src, one.dst);
  }
  return text;
}

std::string SpacedHex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes) text += fmt::format(" {:02x}", std::to_integer<int>(one));
  return text.empty() ? text : text.substr(1);
}

Result<std::vector<std::byte>> ReadFromGpu(cuda::DeviceApi* api, int ordinal,
                                           std::span<const std::byte> bytes) {
  FERRY_TRY_ASSIGN(const cuda::PinnedBuffer read, api->AllocatePinned(ordinal, bytes.size()));
  FERRY_TRY_ASSIGN(const cuda::Stream stream,
                   api->CreateStream(ordinal, cuda::StreamPriority::kNormal));
  const cuda::CopyItem item{read.data(), bytes.data(), bytes.size()};
  FERRY_TRY(api->Copy(stream, cuda::CopyKind::kDeviceToHost, {&item, 1}));
  FERRY_TRY(api->Wait(stream, Deadline::After(kReadTimeout)));
  return std::vector<std::byte>(read.bytes().begin(), read.bytes().end());
}

}  // namespace

const char* UnpackName(UnpackBy by) noexcept {
  switch (by) {
    case UnpackBy::kAuto: break;  // not offered
    case UnpackBy::kKernel: return "kernel";
    case UnpackBy::kDma: return "dma";
    case UnpackBy::kHost: break;
  }
  return "host";
}

void DeclareCarrier(CLI::App* app, CarrierFlags* flags) {
  app->add_option("--provider", flags->provider,
                  "tcp (default), or plugin:PATH, an NCCL network plugin; give it to both sides")
      ->type_name("NAME");
  app->add_option("--unpack", flags->unpack,
                  "How fragments that a plugin receives are assembled: kernel (default), dma or "
                  "host; host memory always uses host")
      ->type_name("HOW");
  app->add_option("--channels", flags->channels,
                  "Connections of the plugin, distributed over its devices; default 1")
      ->type_name("N");
  app->add_option("--chunk", flags->chunk, "Bytes that a channel carries at a time; default 512KiB")
      ->type_name("SIZE");
}

Result<std::optional<CarrierOptions>> CarrierOptionsOf(const CarrierFlags& flags,
                                                       const Config& config) {
  const std::string_view provider = flags.provider;
  if (provider.empty() || provider == "tcp") return std::optional<CarrierOptions>();
  const bool has_path = provider.starts_with("plugin:") && provider.size() > 7;
  if (provider != kPluginProvider && !has_path) {
    return Unknown({flags.provider, "--provider"}, "choose tcp or plugin:PATH");
  }
  CarrierOptions options;
  FERRY_TRY_ASSIGN(options.plugin, PluginOf(provider, config));
  FERRY_TRY_ASSIGN(options.unpack, ParseUnpack(SaidBy(flags.unpack, "--unpack", kUcclUnpack)));
  const Said channels = SaidBy(flags.channels, "--channels", kUcclChannels);
  FERRY_TRY_ASSIGN(options.stripe.channels, ParseAmount(channels, options.stripe.channels));
  const Said chunk = SaidBy(flags.chunk, "--chunk", kUcclChunk);
  FERRY_TRY_ASSIGN(options.stripe.chunk_bytes, ParseAmount(chunk, options.stripe.chunk_bytes));
  FERRY_TRY(CheckOptions(options.stripe));
  return std::optional(std::move(options));
}

std::string HandlesToHex(const std::vector<Handle>& handles) {
  std::string text;
  for (const Handle& handle : handles) text += ToHex(handle);
  return text;
}

Result<std::vector<Handle>> HandlesField(const Json& object) {
  FERRY_TRY_ASSIGN(const auto bytes, BytesField(object, "handles"));
  constexpr std::size_t kEach = std::tuple_size_v<Handle>;
  // They come from the peer.
  if (bytes.size() % kEach != 0 || bytes.size() / kEach > net::plugin::kMaxChannels) {
    return Error(Code::kCorrupt, fmt::format("{} bytes are not a list of handles of {} bytes each",
                                             bytes.size(), kEach));
  }
  std::vector<Handle> handles(bytes.size() / kEach);
  auto from = bytes.begin();
  for (Handle& handle : handles) {
    std::copy_n(from, kEach, handle.begin());
    from += static_cast<std::ptrdiff_t>(kEach);
  }
  return handles;
}

// ---- life ---------------------------------------------------------------------------------------

Result<std::unique_ptr<Carrier>> Carrier::Open(const CarrierOptions& options,
                                               std::span<std::byte> memory, MemoryChoice choice,
                                               const Config& config) {
  const UnpackBy by =
      options.unpack.value_or(choice.is_host() ? UnpackBy::kHost : UnpackBy::kKernel);
  const bool wordy = IsSwitchedOn(kUcclDebug) || IsSwitchedOn(kUcclLaunchDebug);
  if (wordy && !LogEnabled(LogLevel::kInfo)) SetLogLevel(LogLevel::kInfo);
  FERRY_TRY_ASSIGN(cuda::DeviceApi* const api, choice.Open(config));
  // The plugin asks CUDA which GPU is meant.
  if (api != nullptr) FERRY_TRY(api->MakeCurrent(choice.ordinal));
  FERRY_TRY_ASSIGN(Plugin* const plugin, Plugin::Open(options.plugin));
  std::unique_ptr<Carrier> carrier(new Carrier(options, plugin, memory, choice));
  carrier->api_ = api;
  carrier->by_ = by;
  carrier->is_simulated_ = api != nullptr && config.devices.kind == DeviceChoice::Kind::kSimulated;
  carrier->TellOfDevices();
  return carrier;
}

void Carrier::TellOfDevices() const {
  for (std::size_t i = 0; i < plugin_->nics().size(); ++i) {
    const NicFacts& nic = plugin_->nics()[i];
    Tell(fmt::format("device {}: {}, {} Mbit/s, {}", i, nic.name, nic.megabits,
                     nic.unpacks ? "leaves what it receives in pieces" : "receives in place"));
  }
}

Status Carrier::MakeCurrent() {
  return api_ == nullptr ? Ok() : api_->MakeCurrent(choice_.ordinal);
}

Status Carrier::Listen() {
  if (by_ != UnpackBy::kHost && choice_.is_host()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("memory host cannot be unpacked by {}; choose host", UnpackName(by_)));
  }
  FERRY_TRY(MakeCurrent());
  FERRY_TRY_ASSIGN(in_, InStripe::Listen(plugin_, options_.stripe));
  Tell(fmt::format("listening on {} channels", options_.stripe.channels));
  return Ok();
}

Status Carrier::Accept(Deadline deadline) {
  UnpackerOptions unpacker;
  unpacker.by = by_;
  FERRY_TRY_ASSIGN(unpacker_, Unpacker::Create(api_, std::max(choice_.ordinal, 0), unpacker));
  in_->SetWatcher([this](const net::plugin::Chunk& chunk, std::span<const Fragment> fragments,
                         const std::byte* pool) { TellOfArrival(chunk, fragments, pool); });
  FERRY_TRY(in_->Accept(api_, unpacker_.get(), {memory_, api_ != nullptr}, deadline));
  Tell(fmt::format("accepted {} channels; registered {} bytes of {} with each", channels(),
                   memory_.size(), choice_.ToString()));
  return Ok();
}

Status Carrier::Connect(std::span<const Handle> handles, Deadline deadline) {
  if (is_simulated_) {
    return Error(
        Code::kUnsupported,
        fmt::format("a plugin cannot read the memory of simulated {}; send from memory host",
                    choice_.ToString()));
  }
  FERRY_TRY(MakeCurrent());
  FERRY_TRY_ASSIGN(out_, OutStripe::Connect(plugin_, handles, {memory_, api_ != nullptr},
                                            options_.stripe, deadline));
  Tell(fmt::format("connected {} channels; registered {} bytes of {} with each", channels(),
                   memory_.size(), choice_.ToString()));
  return Ok();
}

// ---- transfers ----------------------------------------------------------------------------------

namespace {

Status CheckTime(const char* doing, std::uint64_t done, std::uint64_t count, Deadline deadline) {
  if (Interrupted()) return InterruptedError();
  if (!deadline.expired()) return Ok();
  return Error(Code::kTimedOut,
               fmt::format("{} {} of {} transfers ended before the deadline; check "
                           "the other side, or raise --deadline",
                           doing, done, count));
}

// `begin` starts the next transfer of a stripe.
template <class Stripe, class Begin>
// Polls all the time, as NCCL's proxy does: a plugin makes no progress by itself.
Status Drive(Stripe* stripe, const Carrier::Run& run, Deadline deadline, const char* doing,
             const Begin& begin) {
  const std::uint64_t before = stripe->done();
  std::uint64_t begun = 0;
  for (std::uint64_t done = 0; done < run.count; done = stripe->done() - before) {
    for (; begun < run.count && stripe->in_flight() < run.depth; ++begun) begin();
    FERRY_TRY(stripe->Progress());
    // The plugin's threads and the other side may need this core.
    if (stripe->done() - before == done) (void)::sched_yield();
    FERRY_TRY(CheckTime(doing, stripe->done() - before, run.count, deadline));
  }
  return Ok();
}

}  // namespace

Status Carrier::CheckRun(const Run& run) const {
  constexpr std::uint64_t kMaxChunks = net::plugin::kMaxChunksOfMessage;
  if (run.bytes <= kMaxChunks * options_.stripe.chunk_bytes) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("{} bytes in chunks of {} are more than the {} chunks of a transfer; "
                           "give larger ones (--chunk)",
                           run.bytes, options_.stripe.chunk_bytes, kMaxChunks));
}

Status Carrier::Send(const Run& run, Deadline deadline) {
  FERRY_TRY(CheckRun(run));
  FERRY_TRY(MakeCurrent());
  return Drive(out_.get(), run, deadline,
               "sending:", [&] { out_->Send(run.NextOffset(), run.bytes); });
}

Status Carrier::Receive(const Run& run, Deadline deadline) {
  FERRY_TRY(CheckRun(run));
  FERRY_TRY(MakeCurrent());
  return Drive(in_.get(), run, deadline,
               "receiving:", [&] { in_->Receive(run.NextOffset(), run.bytes); });
}

// ---- what is told -------------------------------------------------------------------------------

void Carrier::TellOfArrival(const net::plugin::Chunk& chunk, std::span<const Fragment> fragments,
                            const std::byte* pool) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  // The first chunk in full, later ones in a line each, if at all: a run has thousands.
  if (std::exchange(told_, true)) {
    if (tells_all_) {
      Tell(fmt::format("chunk with tag {}, {} bytes, at {}: {} fragments", chunk.message.tag,
                       chunk.message.bytes, chunk.offset, fragments.size()));
    }
    return;
  }
  Tell(fmt::format("metadata of the first chunk (tag {}, {} bytes): {} fragments: {}{}",
                   chunk.message.tag, chunk.message.bytes, fragments.size(), Places(fragments),
                   fragments.size() > 3 ? ", ..." : ""));
  if (fragments.empty()) return;
  const Fragment& first = fragments.front();
  const std::size_t bytes = std::min<std::size_t>(first.len, kToldBytes);
  Tell(fmt::format("the pool at {} begins {}", first.src, FirstBytes(pool + first.src, bytes)));
  Tell(fmt::format("unpacking {} fragments by {}", fragments.size(), UnpackName(by_)));
}

std::string Carrier::FirstBytes(const std::byte* at, std::size_t bytes) const {
  if (api_ == nullptr) return SpacedHex({at, bytes});
  const auto read = ReadFromGpu(api_, choice_.ordinal, {at, bytes});
  return read ? SpacedHex(*read) : fmt::format("(not read: {})", read.error().message());
}

}  // namespace ferry::tools
