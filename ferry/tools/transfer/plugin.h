// Files and messages that `ferry transfer` carries through an NCCL network plugin.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/tools/support/json_fwd.h"
#include "ferry/tools/support/memory_choice.h"
#include "ferry/tools/support/operations.h"
#include "ferry/tools/support/plugin_carrier.h"
#include "ferry/tools/transfer/file_window.h"

namespace ferry::tools {

// One side of a file or message that `ferry transfer` carries through a plugin, in pieces through a
// window of two pieces: the client sends the next one while the server takes one out. For one
// thread; calls block.
//
// The client's first message has "plugin": how many "channels", bytes of a "chunk" and of a
// "piece"; the server's answer has its "handles", and comes again as "ready" when all are
// connected. Then the server says "taken" for each piece, and the client has no more than two that
// are not.
class CarriedFile {
 public:
  struct Side {
    CarrierOptions options;
    MemoryChoice memory;
    const Config* config;
    Control* control;
  };
  // The client's side. It makes all local checks, so that they fail before the server is contacted.
  // `bytes` has at least one byte and outlives the object.
  static Result<std::unique_ptr<CarriedFile>> Prepare(const Side& side, std::span<std::byte> bytes);
  Json Question() const;
  Status Connect(const Json& answer);
  // Returns when the server has taken all bytes out of its window.
  Status Send();

  // The server's side: sends an answer with "handles" and the fields of `answer`.
  static Result<std::unique_ptr<CarriedFile>> Accept(const Side& side, const Json& question,
                                                     Json answer, std::span<std::byte> bytes);
  // Returns when all bytes are in place.
  Status Receive();

  // "GPUDirectTCPX_v7 (/x.so), 4 channels, chunks of 512 KiB"
  std::string Describe() const;
  const net::plugin::Plugin& plugin() const noexcept { return carrier_->plugin(); }

 private:
  CarriedFile(const Side& side, std::uint64_t piece, std::uint64_t size)
      : side_(side), piece_(piece), size_(size) {}
  Status Open(std::span<std::byte> bytes);
  Carrier::Run PieceAt(std::uint64_t at) const;

  const Side side_;
  const std::uint64_t piece_;
  const std::uint64_t size_;
  FileWindow file_window_;
  std::unique_ptr<Carrier> carrier_;  // goes before the memory that it uses
};

}  // namespace ferry::tools
