#include "ferry/transfer/reception.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/transfer/endpoint_core.h"

namespace ferry::transfer {
namespace {

// Strangers that are being talked to at once; more are turned away before they cost memory.
constexpr std::size_t kMaxGreetings = 1024;

std::span<const std::byte> BytesOf(const auto& body) { return std::as_bytes(std::span(&body, 1)); }

// It stands first in every version of hello and join; the rest may differ.
Status CheckVersion(wire::MetaReader reader) {
  std::uint16_t version = 0;
  if (!reader.Read(&version)) return Error(Code::kCorrupt, "empty greeting");
  if (version == wire::kVersion) return Ok();
  return Error(Code::kUnsupported,
               fmt::format("this endpoint speaks version {} of the protocol, not {}; use the same "
                           "release on both sides",
                           wire::kVersion, version));
}

}  // namespace

Reception::Reception(EndpointCore* endpoint) : endpoint_(endpoint), loop_(endpoint->front_loop()) {}

Reception::~Reception() = default;

void Reception::ClearOnLoop() {
  arrivals_.clear();
  greetings_.clear();
}

void Reception::OnAcceptedOnLoop(std::unique_ptr<net::Lane> lane) {
  if (endpoint_->closing()) return;
  if (greetings_.size() >= kMaxGreetings) {
    Log(LogLevel::kWarn, "transfer", "turned {} away: {} greetings are under way already",
        lane->Info().remote, greetings_.size());
    return;
  }
  const Deadline deadline = Deadline::After(endpoint_->config().handshake_timeout);
  auto owned = std::make_unique<Greeting>(std::move(lane), loop_, deadline);
  Greeting* const greeting = owned.get();
  greetings_[greeting].greeting = std::move(owned);
  greeting->StartOnLoop(
      [this, greeting](const auto& header, auto* reader) {
        return OnHeard(greeting, header, reader);
      },
      [this, greeting](const Error& error) { OnGone(greeting, error); });
}

Status Reception::OnHeard(Greeting* greeting, const wire::MessageHeader& header,
                          wire::MetaReader* reader) {
  Status heard = Answer(greeting, header.type, reader);
  if (!heard && heard.error().code() != Code::kCorrupt) {
    Refuse(greeting, heard.error());
    return Ok();
  }
  return heard;
}

Status Reception::Answer(Greeting* greeting, wire::Type type, wire::MetaReader* reader) {
  Stranger& stranger = greetings_.at(greeting);
  if (stranger.exchange) {
    if (type != wire::Type::kProof) return Error(Code::kCorrupt, "no proof");
    FERRY_TRY(CheckProof(&stranger, reader));
    wire::MetaReader said(stranger.exchange->said);
    return Admit(greeting, stranger.exchange->first, &said);
  }
  if (type != wire::Type::kHello && type != wire::Type::kJoin) {
    return Error(Code::kCorrupt, "no greeting");
  }
  FERRY_TRY(CheckVersion(*reader));
  if (endpoint_->secret()) return Challenge(&stranger, type, reader);
  if (!endpoint_->Trusts(greeting->is_local())) {
    return Error(Code::kRefused,
                 "this endpoint has no secret to know peers on other machines by; set "
                 "FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on in a network you trust");
  }
  return Admit(greeting, type, reader);
}

Status Reception::Challenge(Stranger* stranger, wire::Type type, wire::MetaReader* reader) {
  wire::HelloBody hello;
  wire::MetaReader peek = *reader;
  const bool is_hello = type == wire::Type::kHello;
  const std::size_t bytes = is_hello ? sizeof hello : sizeof(wire::JoinBody);
  if (reader->rest().size() != bytes) return Error(Code::kCorrupt, "malformed greeting");
  if (is_hello && (!peek.Read(&hello) || hello.has_secret == 0)) {
    return Error(Code::kRefused,
                 "this endpoint asks its peers for a secret and got none; set FERRY_SECRET_FILE to "
                 "the same on both sides");
  }
  Exchange& exchange = stranger->exchange.emplace();
  exchange.first = type;
  exchange.said.assign(reader->rest().begin(), reader->rest().end());
  FillRandom(exchange.server);
  stranger->greeting->HearMoreOnLoop();
  stranger->greeting->SayOnLoop(wire::Type::kChallenge, exchange.server);
  return Ok();
}

Status Reception::CheckProof(Stranger* stranger, wire::MetaReader* reader) {
  wire::ProofBody proof;
  if (!reader->Read(&proof)) return Error(Code::kCorrupt, "malformed proof");
  stranger->exchange->client = proof.nonce;
  if (SameMac(stranger->exchange->ClientProof(*endpoint_->secret()), proof.mac)) return Ok();
  return Error(Code::kRefused,
               "the two sides have different secrets; set FERRY_SECRET_FILE to the same on both");
}

Status Reception::Admit(Greeting* greeting, wire::Type type, wire::MetaReader* reader) {
  return type == wire::Type::kHello ? OnHello(greeting, reader) : OnJoin(greeting, reader);
}

void Reception::SayProven(Greeting* greeting, wire::Type type, std::span<const std::byte> body) {
  std::vector<std::byte> all(body.begin(), body.end());
  if (const auto& secret = endpoint_->secret()) {
    const Mac mac = greetings_.at(greeting).exchange->ServerProof(*secret, body);
    all.insert(all.end(), mac.begin(), mac.end());
  }
  greeting->SayOnLoop(type, all);
}

Status Reception::OnHello(Greeting* greeting, wire::MetaReader* reader) {
  wire::HelloBody hello;
  if (!reader->Read(&hello) || hello.lanes == 0 || hello.window_bytes == 0) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed hello", greeting->peer_name()));
  }
  Arrival arrival;
  std::memcpy(arrival.peer.bytes.data(), hello.endpoint, sizeof hello.endpoint);
  arrival.window_bytes = std::min(hello.window_bytes, endpoint_->config().window_bytes);
  arrival.welcome.lanes = std::min(hello.lanes, static_cast<std::uint16_t>(endpoint_->lanes()));
  arrival.welcome.connection = next_id_++;
  arrival.welcome.window_bytes = arrival.window_bytes;
  std::memcpy(arrival.welcome.endpoint, endpoint_->id().bytes.data(), 16);
  const Uuid token = Uuid::Random();
  std::memcpy(arrival.welcome.token, token.bytes.data(), 16);
  arrival.lanes.assign(arrival.welcome.lanes, nullptr);
  arrival.lanes.front() = greeting;
  arrival.joined = 1;
  const std::uint32_t id = arrival.welcome.connection;
  greeting->SetOnSaid([this, id] { CompleteIfReady(id); });
  SayProven(greeting, wire::Type::kWelcome, BytesOf(arrival.welcome));
  arrivals_.emplace(id, std::move(arrival));
  return Ok();
}

Status Reception::OnJoin(Greeting* greeting, wire::MetaReader* reader) {
  wire::JoinBody join;
  if (!reader->Read(&join)) return Error(Code::kCorrupt, "malformed join");
  const auto it = arrivals_.find(join.connection);
  if (it == arrivals_.end() ||
      std::memcmp(it->second.welcome.token, join.token, sizeof join.token) != 0) {
    return Error(Code::kRefused, "this lane belongs to no connection that is being set up here");
  }
  Arrival& arrival = it->second;
  if (join.lane >= arrival.lanes.size() || arrival.lanes[join.lane] != nullptr) {
    return Error(Code::kRefused, fmt::format("lane {} is not free", join.lane));
  }
  arrival.lanes[join.lane] = greeting;
  ++arrival.joined;
  const std::uint32_t id = join.connection;
  greeting->SetOnSaid([this, id] { CompleteIfReady(id); });
  SayProven(greeting, wire::Type::kJoined, {});
  return Ok();
}

void Reception::Refuse(Greeting* greeting, const Error& error) {
  Log(LogLevel::kInfo, "transfer", "refused {}: {}", greeting->peer_name(), error.message());
  wire::RefuseBody body;
  body.code = static_cast<std::uint8_t>(error.code());
  greeting->CloseWhenSaidOnLoop();
  greeting->SayOnLoop(wire::Type::kRefuse, BytesOf(body), error.message());
}

void Reception::OnGone(Greeting* greeting, const Error& error) {
  Log(LogLevel::kDebug, "transfer", "greeting with {} ended: {}", greeting->peer_name(),
      error.message());
  for (auto it = arrivals_.begin(); it != arrivals_.end(); ++it) {
    auto& lanes = it->second.lanes;
    if (std::find(lanes.begin(), lanes.end(), greeting) == lanes.end()) continue;
    const std::vector<Greeting*> together = lanes;
    arrivals_.erase(it);
    for (Greeting* one : together) {
      if (one != nullptr) Drop(one);
    }
    return;
  }
  Drop(greeting);
}

// Outside the callback that brought us here.
void Reception::Drop(Greeting* greeting) {
  const auto it = greetings_.find(greeting);
  if (it == greetings_.end()) return;
  loop_->Post([owned = std::move(it->second.greeting)] {});
  greetings_.erase(it);
}

void Reception::CompleteIfReady(std::uint32_t id) {
  const auto it = arrivals_.find(id);
  if (it == arrivals_.end() || it->second.joined < it->second.lanes.size()) return;
  const auto& lanes = it->second.lanes;
  if (!std::all_of(lanes.begin(), lanes.end(), [](const Greeting* g) { return g->complete(); })) {
    return;
  }
  loop_->Post([this, id] { Complete(id); });
}

void Reception::Complete(std::uint32_t id) {
  const auto it = arrivals_.find(id);
  if (it == arrivals_.end()) return;  // a lane was lost since
  const Arrival arrival = std::move(it->second);
  arrivals_.erase(it);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  const std::string name = arrival.lanes.front()->peer_name();
  for (Greeting* greeting : arrival.lanes) {
    lanes.push_back(greeting->ReleaseLane());
    greetings_.erase(greeting);
  }
  auto connection = std::make_shared<ConnectionCore>(endpoint_->config(), &endpoint_->regions(),
                                                     Peer{arrival.peer, name, arrival.window_bytes},
                                                     endpoint_->ChooseLoops(lanes.size()));
  endpoint_->Keep(connection);
  // The lanes move to their own loops from this one, which is theirs until then.
  endpoint_->BringUpOnLoop(connection, std::move(lanes), /*from_outside=*/true);
}

}  // namespace ferry::transfer
