// The endpoints that the engine's fuzzer talks to, and the objects that each side holds of the
// other.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/handshake/wire.h"
#include "tests/fuzz/scripted_lane.h"

namespace ferry::fuzz {

namespace wire = transfer::wire;

inline constexpr std::uint16_t kLanes = 2;

inline bool IsSequenced(wire::Type type) {
  using wire::Type;
  return type == Type::kWrite || type == Type::kReadData || type == Type::kSend ||
         type == Type::kRts || type == Type::kNotify || type == Type::kCts || type == Type::kFin ||
         type == Type::kDeclined;
}

// One endpoint of each kind for the whole run: threads cost more than an input.
struct Host {
  ScriptedProvider* provider;  // the endpoint's
  std::optional<transfer::Endpoint> endpoint;

  explicit Host(std::chrono::microseconds drain_grace) {
    Config config;
    config.lanes = kLanes;
    config.workers = 1;
    config.slice_bytes = 4 << 10;
    config.window_bytes = 64 << 10;
    config.eager_bytes = 512;
    config.unexpected_bytes = 64 << 10;
    config.notification_bytes = 4 << 10;
    config.max_operations = 16;
    config.handshake_timeout = std::chrono::hours(1);
    config.peer_timeout = std::chrono::hours(1);
    config.heartbeat_interval = std::chrono::minutes(59);
    config.drain_grace = drain_grace;
    auto owned = std::make_unique<ScriptedProvider>();
    provider = owned.get();
    auto created = transfer::Endpoint::Create(config, std::move(owned));
    FERRY_CHECK(created.has_value());
    endpoint = *std::move(created);
  }

  static Host& WithLongTimeouts() {
    static Host host(std::chrono::hours(1));
    return host;
  }
  static Host& ShortTimeout() {
    static Host host(std::chrono::microseconds(0));
    return host;
  }
};

// Memory of this side, in an allocation of just its size.
struct Memory {
  std::size_t size;
  std::unique_ptr<std::byte[]> bytes;
  std::optional<transfer::Region> region;
  bool revoked = false;
  bool read_into = false;  // by an operation of ours

  std::span<std::byte> span() const { return {bytes.get(), size}; }
};

struct Running {
  transfer::Operation operation;
  std::unique_ptr<std::byte[]> buffer;  // of messages
};

// A frame of the engine, as far as answers to it refer to it.
struct Heard {
  wire::MessageHeader header;
  std::vector<std::byte> body;
  std::uint32_t sequence = 0;
};

struct PeerLane {
  std::shared_ptr<PeerEnd> end;
  std::uint32_t sequenced = 0;  // frames of the engine, read
};

template <class T>
T BodyOf(const Heard& heard) {
  T body{};
  wire::MetaReader reader(heard.body);
  (void)reader.Read(&body);
  return body;
}

inline std::uint64_t BytesAskedFor(const Heard& request) {
  wire::MetaReader reader(request.body);
  wire::WriteBody body;
  (void)reader.Read(&body);
  wire::BlockOnWire block;
  std::uint64_t bytes = 0;
  while (reader.Read(&block)) bytes += block.length;
  return bytes;
}

}  // namespace ferry::fuzz
