// The back end that NIXL's agent calls.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/transfer/endpoint.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/memory.h"
#include "plugins/nixl/peers/courier.h"
#include "plugins/nixl/peers/identity.h"
#include "plugins/nixl/peers/inbox.h"
#include "plugins/nixl/peers/peer.h"
#include "plugins/nixl/peers/wire.h"
#include "plugins/nixl/tasks.h"
#include "plugins/nixl/transfer_job.h"

namespace ferry::nixl {

// An agent's endpoint, its peers and its notifications. No function lets an exception out; errors
// are logged where they are found.
class Backend final : public abi::BackendEngine {
 public:
  // Errors: kInvalidArgument (settings), kUnavailable (ports, descriptors, threads).
  static Result<std::unique_ptr<Backend>> Create(const abi::InitParams& init);
  // Destroys what Create() made. A forked child abandons it: the threads to join are its parent's.
  static void Destroy(std::unique_ptr<Backend> backend) noexcept;
  // Waits a moment for notifications on their way, then ends all; no thread is left.
  ~Backend() override;

  bool SupportsRemote() const override { return true; }
  bool SupportsLocal() const override { return true; }
  bool SupportsNotifications() const override { return true; }
  abi::Memories SupportedMemories() const override;
  abi::Outcome Register(const abi::BlobDescriptor& memory, const abi::Memory& kind,
                        abi::Metadata*& out) override;
  abi::Outcome Deregister(abi::Metadata* metadata) override;
  abi::Outcome Connect(const std::string& agent) override;
  abi::Outcome Disconnect(const std::string& agent) override;
  abi::Outcome UnloadMetadata(abi::Metadata* metadata) override;
  abi::Outcome Prepare(const abi::Direction& direction, const abi::MetaList& local,
                       const abi::MetaList& remote, const std::string& agent,
                       abi::Request*& request, const abi::Options* options) const override;
  abi::Outcome Post(const abi::Direction& direction, const abi::MetaList& local,
                    const abi::MetaList& remote, const std::string& agent, abi::Request*& request,
                    const abi::Options* options) const override;
  abi::Outcome Check(abi::Request* request) const override;
  abi::Outcome Release(abi::Request* request) const override;
  abi::Outcome PublicData(const abi::Metadata* metadata, std::string& out) const override;
  abi::Outcome ConnectionInfo(std::string& out) const override;
  abi::Outcome LoadConnectionInfo(const std::string& agent, const std::string& info) override;
  abi::Outcome LoadRemoteMetadata(const abi::BlobDescriptor& memory, const abi::Memory& kind,
                                  const std::string& agent, abi::Metadata*& out) override;
  abi::Outcome LoadLocalMetadata(abi::Metadata* metadata, abi::Metadata*& out) override;
  abi::Outcome TakeNotifications(abi::Notifications& out) override;
  abi::Outcome Notify(const std::string& agent, const std::string& message) const override;
  abi::Outcome Query(const abi::BlobList& memories,
                     std::vector<std::optional<abi::Params>>& out) const override;
  abi::Outcome EstimateCost(const abi::Direction& direction, const abi::MetaList& local,
                            const abi::MetaList& remote, const std::string& agent,
                            abi::Request* const& request, std::chrono::microseconds& duration,
                            std::chrono::microseconds& margin, abi::CostMethod& method,
                            const void* options) const override;

 private:
  // The registrations of one range, which have one region, so that their metadata is the same:
  // NIXL's agent refuses metadata that changes.
  struct Registered {
    std::shared_ptr<transfer::Region> region;  // as in LocalMemory
    std::size_t count = 0;
  };

  struct Secrets {
    SecretText settings;             // peers prove it; shared with all agents; may be empty
    Uuid metadata = Uuid::Random();  // peers prove it; in this agent's metadata
    Uuid token = Uuid::Random();     // key of TokenOf(); nobody else knows it
  };

  Backend(const abi::InitParams& init, Config config, Secrets secrets, SigningKey key,
          transfer::Endpoint endpoint);
  Status Start();
  nixl::ConnectionInfo OwnInfo() const {
    return {endpoint_.address(), secrets_.metadata, key_.public_key()};
  }
  // Errors: kInvalidArgument where no metadata of this agent is loaded.
  Result<std::shared_ptr<Peer>> FindPeer(const std::string& agent) const;
  Result<std::unique_ptr<LocalMemory>> TryRegister(const MemoryRange& range);
  std::uint64_t TokenOf(const MemoryRange& range) const;
  Result<std::shared_ptr<transfer::Region>> RegisterRange(const MemoryRange& range);
  // Takes the memory out of the tables; null if it is not in them. `last`: no other registration of
  // its range is left.
  std::unique_ptr<LocalMemory> Take(abi::Metadata* metadata, bool* last);
  abi::Outcome Load(std::unique_ptr<RemoteMemory> memory, abi::Metadata*& out);
  Result<std::unique_ptr<RemoteMemory>> TryImport(const abi::BlobDescriptor& memory,
                                                  abi::Memory kind, const std::string& agent) const;

  const ProcessMark mark_;
  const Config config_;
  transfer::Endpoint endpoint_;
  const Secrets secrets_;
  const SigningKey key_;
  mutable ActiveTransfers active_;
  Tasks tasks_;
  std::unique_ptr<Courier> courier_;
  std::unique_ptr<Inbox> inbox_;
  Peer::Context peer_context_;
  TransferJob::Context transfer_context_;
  std::mutex registering_;  // before mutex_
  mutable std::mutex mutex_;
  // Under mutex_; shared with transfers. This agent is one of them, for transfers to itself.
  std::map<std::string, std::shared_ptr<Peer>> peers_;
  // Under mutex_: what the agent has of us. It gives some back twice.
  std::set<const abi::Metadata*> registered_;
  std::set<const abi::Metadata*> loaded_;
  std::map<MemoryRange, Registered> ranges_;  // under mutex_
};

}  // namespace ferry::nixl
