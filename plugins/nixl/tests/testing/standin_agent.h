// A stand-in for NIXL's agent: drives a back end through its tables, in the order in which the
// agent does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/deadline.h"
#include "plugins/nixl/abi.h"

namespace ferry::nixl::testing {

// The plug-in's table: of the built file, loaded as NIXL loads it, or of the code in this program.
const abi::Plugin& LoadedPlugin();
const abi::Plugin& LinkedPlugin();

// A range of registered memory, of either side.
struct Range {
  std::uintptr_t address = 0;
  std::size_t length = 0;
};

// One agent with one back end. Throws std::runtime_error where an agent would fail that no test
// expects to. One thread at a time, except where said.
class StandInAgent {
 public:
  explicit StandInAgent(std::string name, const abi::Params& params = {},
                        const abi::Plugin& plugin = LoadedPlugin());
  ~StandInAgent();
  StandInAgent(const StandInAgent&) = delete;
  StandInAgent& operator=(const StandInAgent&) = delete;

  const std::string& name() const noexcept { return name_; }
  abi::BackendEngine& engine() noexcept { return *engine_; }

  // Registers memory that outlives the agent, or its Deregister().
  abi::Outcome Register(std::span<std::byte> memory, abi::Memory kind = abi::Memory::kDram);
  // `times`: how often the range is in the list, for each of which NIXL's agent gives the back end
  // the same metadata.
  void Deregister(std::span<std::byte> memory, int times = 1);
  // All that a peer has to load, on one line.
  std::string Metadata() const;
  // Loads a peer's metadata and returns how that ended. As NIXL's agent, keeps what it has of a
  // range, and refuses other metadata of it.
  abi::Outcome Load(std::string_view metadata);
  // Forgets a peer, as the agent does when it is told to or when the peer is gone.
  void Forget(const std::string& peer);

  // A transfer between the two lists, which the agent looks up in registered and loaded memory.
  class Transfer {
   public:
    Transfer(StandInAgent* agent, abi::Direction direction, std::string peer);
    ~Transfer();
    Transfer(Transfer&& other) noexcept;
    Transfer(const Transfer&) = delete;

    abi::Outcome Post(std::optional<std::string> notification = std::nullopt);
    abi::Outcome Check();
    // Polls until it has ended; kInProgress after the deadline.
    abi::Outcome Wait(Deadline deadline);
    // Releases it, as often as it has to be asked for; throws after the deadline.
    void Release(Deadline deadline);

    abi::MetaList local;
    abi::MetaList remote;
    abi::Request* request = nullptr;

   private:
    friend class StandInAgent;
    StandInAgent* agent_;
    abi::Direction direction_;
    std::string peer_;
  };
  // Any thread. `outcome`: how preparing ended, success if null.
  Transfer Prepare(abi::Direction direction, std::span<const Range> local,
                   std::span<const Range> remote, const std::string& peer,
                   abi::Outcome* outcome = nullptr);

  // Takes notifications until there are `count` or the deadline passes.
  abi::Notifications Await(std::size_t count, Deadline deadline);
  // The memory of the peer that was loaded last.
  const std::vector<abi::BlobDescriptor>& loaded() const noexcept { return loaded_blobs_; }

 private:
  struct Entry {
    abi::BlobDescriptor blob;
    abi::Memory kind{};
    abi::Metadata* metadata = nullptr;
    // Empty: own memory. The agent's own name: the same memory, as the peer of transfers to itself.
    std::string peer;
  };

  const Entry* Find(const Range& range, const std::string& peer) const;

  const std::string name_;
  const abi::Plugin& plugin_;
  abi::BackendEngine* engine_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<abi::BlobDescriptor> loaded_blobs_;
};

}  // namespace ferry::nixl::testing
