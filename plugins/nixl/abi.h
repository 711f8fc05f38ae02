// The binary interface between NIXL's agent and its back ends, versions 1.0 to 1.5, on 64-bit
// machines with libstdc++'s C++11 ABI.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// Declared from the facts of the interface (order of the virtual functions, offsets), not from
// NIXL's headers, which need its log library. The agent calls a back end through its virtual table
// and reads the fields of the base class inline, so order and offsets are all that counts; names
// are ours. The number by which NIXL's loader compares interfaces has been 1 through all of its
// incompatible changes, so it protects from nothing; agent_library.h compares what can be compared.
namespace ferry::nixl::abi {

inline constexpr int kApiVersion = 1;
// The versions of NIXL whose interface is this one: 1.0 to 1.5.
inline constexpr int kMajorVersion = 1;
inline constexpr int kNewestMinorVersion = 5;
// Slots of the virtual table of BackendEngine.
inline constexpr std::size_t kEngineFunctions = 27;

enum class Memory : int { kDram = 0, kVram = 1, kBlock = 2, kObject = 3, kFile = 4 };
enum class Direction : int { kRead = 0, kWrite = 1 };
enum class CostMethod : int { kAnalytical = 0 };
enum class Outcome : int {
  kInProgress = 1,
  kSuccess = 0,
  kNotPosted = -1,
  kInvalidParam = -2,
  kBackend = -3,
  kNotFound = -4,
  kMismatch = -5,
  kNotAllowed = -6,
  kRepostActive = -7,
  kUnknown = -8,
  kNotSupported = -9,
  kRemoteDisconnect = -10,
  kCanceled = -11,
};

using Params = std::unordered_map<std::string, std::string>;
using Memories = std::vector<Memory>;
// Pairs of the sender's agent name and the message.
using Notifications = std::vector<std::pair<std::string, std::string>>;

// What the agent gives to a new back end.
struct InitParams {
  std::string agent;
  std::string type;  // the name that the user gave the back end, which is in its file's name
  Params* params = nullptr;
  bool progress_thread = false;
  std::uint64_t progress_delay_us = 0;
  int sync_mode = 0;
  bool telemetry = false;
};
static_assert(offsetof(InitParams, type) == 0x20);
static_assert(offsetof(InitParams, params) == 0x40);
static_assert(offsetof(InitParams, progress_thread) == 0x48);
static_assert(offsetof(InitParams, progress_delay_us) == 0x50);
static_assert(offsetof(InitParams, sync_mode) == 0x58);
static_assert(offsetof(InitParams, telemetry) == 0x5c);

// What a back end makes of registered or of imported memory. The agent keeps the pointer.
class Metadata {
 public:
  explicit Metadata(bool is_private) : is_private_(is_private) {}
  Metadata(const Metadata&) = delete;
  Metadata& operator=(const Metadata&) = delete;
  virtual ~Metadata() = default;

 protected:
  bool is_private_;
};
static_assert(sizeof(Metadata) == 16);

// A transfer that was prepared. The agent keeps the pointer until ReleaseRequest() accepts it.
class Request {
 public:
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  virtual ~Request() = default;
};

struct Descriptor {
  std::uintptr_t address = 0;
  std::size_t length = 0;
  std::uint64_t device = 0;
};
static_assert(sizeof(Descriptor) == 24);

struct BlobDescriptor {
  Descriptor at;
  std::string blob;
};
static_assert(sizeof(BlobDescriptor) == 56);

struct MetaDescriptor {
  Descriptor at;
  Metadata* metadata = nullptr;
};
static_assert(sizeof(MetaDescriptor) == 32);

// A list of descriptors. Its virtual functions are the agent's and are not called here.
template <class T>
struct List {
  const void* virtual_table = nullptr;
  Memory memory = Memory::kDram;
  std::vector<T> items;
};
static_assert(offsetof(List<MetaDescriptor>, memory) == 8);
static_assert(offsetof(List<MetaDescriptor>, items) == 16);
static_assert(sizeof(List<MetaDescriptor>) == 40);
using MetaList = List<MetaDescriptor>;
using BlobList = List<BlobDescriptor>;

struct Options {
  std::string notification;
  bool has_notification = false;
  std::string custom;
};
static_assert(offsetof(Options, has_notification) == 0x20);
static_assert(offsetof(Options, custom) == 0x28);

// What follows the virtual table pointer of every back end; the agent reads it inline.
struct EngineFields {
  std::string type;
  Params params;
  std::vector<std::byte> telemetry;  // events, of which we never add any
  std::mutex telemetry_mutex;
  bool init_failed = false;  // read by the agent after construction
  std::string agent;
  bool telemetry_on = false;
};
// From the start of the object, with the virtual table pointer.
static_assert(offsetof(EngineFields, params) + 8 == 0x28);
static_assert(offsetof(EngineFields, telemetry) + 8 == 0x60);
static_assert(offsetof(EngineFields, telemetry_mutex) + 8 == 0x78);
// 0xa0 on x86-64, where a mutex has 40 bytes; on 64-bit Arm it has 48.
inline constexpr std::size_t kAfterMutex = 0x78 + sizeof(std::mutex);
static_assert(offsetof(EngineFields, init_failed) + 8 == kAfterMutex);
static_assert(offsetof(EngineFields, agent) + 8 == kAfterMutex + 0x08);
static_assert(offsetof(EngineFields, telemetry_on) + 8 == kAfterMutex + 0x28);

// The base of every back end. The numbers are slots of the virtual table; each slot has to stay
// where it is. The agent catches no exception of them, and calls const functions on several threads
// at once.
class BackendEngine {
 public:
  explicit BackendEngine(const InitParams& init)
      : fields_{.type = init.type,
                .params = init.params == nullptr ? Params() : *init.params,
                .telemetry = {},
                .telemetry_mutex = {},
                .init_failed = false,
                .agent = init.agent,
                .telemetry_on = init.telemetry} {}
  BackendEngine(const BackendEngine&) = delete;
  BackendEngine& operator=(const BackendEngine&) = delete;

  virtual ~BackendEngine() = default;              // 0, 1
  virtual bool SupportsRemote() const = 0;         // 2
  virtual bool SupportsLocal() const = 0;          // 3
  virtual bool SupportsNotifications() const = 0;  // 4: must be true if SupportsRemote() is
  virtual Memories SupportedMemories() const = 0;  // 5
  virtual Outcome Register(const BlobDescriptor& memory, const Memory& kind,
                           Metadata*& out) = 0;              // 6
  virtual Outcome Deregister(Metadata* metadata) = 0;        // 7
  virtual Outcome Connect(const std::string& agent) = 0;     // 8
  virtual Outcome Disconnect(const std::string& agent) = 0;  // 9
  virtual Outcome UnloadMetadata(Metadata* metadata) = 0;    // 10
  virtual Outcome Prepare(const Direction& direction, const MetaList& local, const MetaList& remote,
                          const std::string& agent, Request*& request,
                          const Options* options) const = 0;  // 11
  virtual Outcome Post(const Direction& direction, const MetaList& local, const MetaList& remote,
                       const std::string& agent, Request*& request,
                       const Options* options) const = 0;  // 12
  virtual Outcome Check(Request* request) const = 0;       // 13
  // Does not block. A negative outcome: not yet, the agent keeps the request.
  virtual Outcome Release(Request* request) const = 0;  // 14
  virtual Outcome PrepareRemoteView(const void* /*list*/, void*& /*view*/,
                                    const Options* /*options*/) const {  // 15
    return Outcome::kNotSupported;
  }
  virtual Outcome PrepareLocalView(const MetaList& /*list*/, void*& /*view*/,
                                   const Options* /*options*/) const {  // 16
    return Outcome::kNotSupported;
  }
  virtual void ReleaseView(void* /*view*/) const {}                                  // 17
  virtual Outcome PublicData(const Metadata* metadata, std::string& out) const = 0;  // 18
  // Asked once, after creation; the answer must not be empty.
  virtual Outcome ConnectionInfo(std::string& out) const = 0;  // 19
  virtual Outcome LoadConnectionInfo(const std::string& agent,
                                     const std::string& info) = 0;  // 20
  virtual Outcome LoadRemoteMetadata(const BlobDescriptor& memory, const Memory& kind,
                                     const std::string& agent, Metadata*& out) = 0;  // 21
  virtual Outcome LoadLocalMetadata(Metadata* metadata, Metadata*& out) = 0;         // 22
  // The list comes empty.
  virtual Outcome TakeNotifications(Notifications& out) = 0;                               // 23
  virtual Outcome Notify(const std::string& agent, const std::string& message) const = 0;  // 24
  virtual Outcome Query(const BlobList& memories,
                        std::vector<std::optional<Params>>& out) const = 0;  // 25
  virtual Outcome EstimateCost(const Direction& direction, const MetaList& local,
                               const MetaList& remote, const std::string& agent,
                               Request* const& request, std::chrono::microseconds& duration,
                               std::chrono::microseconds& margin, CostMethod& method,
                               const void* options) const = 0;  // 26

 protected:
  EngineFields fields_;
};
static_assert(sizeof(BackendEngine) == kAfterMutex + 0x30);

// What nixl_plugin_init() returns.
struct Plugin {
  int api_version = kApiVersion;
  BackendEngine* (*create)(const InitParams* init) = nullptr;
  void (*destroy)(BackendEngine* engine) = nullptr;
  const char* (*name)() = nullptr;
  const char* (*version)() = nullptr;
  Params (*default_params)() = nullptr;
  Memories (*memories)() = nullptr;
};
static_assert(sizeof(Plugin) == 56);

}  // namespace ferry::nixl::abi
