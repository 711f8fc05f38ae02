// Adapts each version of the plugin interface to the newest one.
#include "ferry/tcpx/host/driver.h"

#include <array>
#include <type_traits>

#include "ferry/net/nccl_abi/abi_v10.h"
#include "ferry/net/nccl_abi/abi_v11.h"
#include "ferry/net/nccl_abi/abi_v12.h"
#include "ferry/net/nccl_abi/abi_v5.h"
#include "ferry/net/nccl_abi/abi_v6.h"
#include "ferry/net/nccl_abi/abi_v7.h"
#include "ferry/net/nccl_abi/abi_v8.h"
#include "ferry/net/nccl_abi/abi_v9.h"

namespace ferry::tcpx {
namespace {

std::string TextOf(const char* text) { return text == nullptr ? std::string() : text; }

// Profilers are not supported, but plugins may call this without checking.
int IgnoreProfile(void** /*event*/, int /*type*/, void* /*parent*/, std::int64_t /*plugin*/,
                  void* /*data*/) {
  return abi::kSuccess;
}

template <class Table>
// The tables of abi_v*.h differ by functions added, parameters added and types widened, so each
// call below is one body with an `if constexpr` for each change, and a table of a version that
// lacks a member still compiles. What changed when: v7 device handles and irecvConsumed; v8
// registrations of more than 2^31 bytes; v9 messages sized by size_t; v10 a configuration for
// connect and a profiler; v11 a context, and finalize. Calls come from the thread of the comm;
// nothing here locks.
class TableDriver final : public Driver {
 public:
  explicit TableDriver(Table* table) : table_(table) {}

  int version() const noexcept override { return kVersion; }
  const char* name() const noexcept override { return table_->name; }
  std::uint64_t most_registered_bytes() const noexcept override {
    // regMr took an int before v8.
    return kVersion >= 8 ? ~std::uint64_t{0} : abi::kMaxRegisteredV7;
  }
  std::size_t most_requests() const noexcept override {
    return kVersion >= 7 ? abi::kMaxRequests : abi::kMaxRequestsV6;
  }
  bool can_consume() const noexcept override {
    if constexpr (kVersion >= 7) return table_->irecv_consumed != nullptr;
    return false;
  }

  int Init(abi::Logger logger) override {
    if constexpr (kVersion >= 11) {
      // Communicator 0: a driver is one use of the plugin, and has one context.
      return table_->init(&context_, /*comm=*/0, &config_, logger, IgnoreProfile);
    } else if constexpr (kVersion == 10) {
      return table_->init(logger, IgnoreProfile);
    } else {
      return table_->init(logger);
    }
  }
  int Finalize() override {
    if constexpr (kVersion >= 11) {
      // Up to v10 there is nothing that undoes init().
      if (table_->finalize != nullptr) return table_->finalize(context_);
    }
    return abi::kSuccess;
  }
  int Devices(int* count) override { return table_->devices(count); }
  int Describe(int device, NicFacts* facts) override {
    // Zeroed, since a plugin may leave alone what it does not know.
    typename Table::Properties properties{};
    const int outcome = table_->get_properties(device, &properties);
    if (outcome == abi::kSuccess) *facts = FactsOf(properties);
    return outcome;
  }

  int Listen(int device, void* handle, void** listen_comm) override {
    if constexpr (kVersion >= 11) {
      return table_->listen(context_, device, handle, listen_comm);
    } else {
      return table_->listen(device, handle, listen_comm);
    }
  }
  int Connect(int device, void* handle, void** send_comm,
              abi::DeviceHandle** device_handle) override {
    if constexpr (kVersion >= 11) {
      return table_->connect(context_, device, handle, send_comm, device_handle);
    } else if constexpr (kVersion == 10) {
      return table_->connect(device, &config_, handle, send_comm, device_handle);
    } else if constexpr (kVersion >= 7) {
      return table_->connect(device, handle, send_comm, device_handle);
    } else {
      // Before v7 there is no device handle; `device_handle` stays as the caller has set it.
      return table_->connect(device, handle, send_comm);
    }
  }
  int Accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) override {
    if constexpr (kVersion >= 7) {
      return table_->accept(listen_comm, recv_comm, device_handle);
    } else {
      return table_->accept(listen_comm, recv_comm);
    }
  }

  int Register(void* comm, void* data, std::size_t bytes, int kind, void** mr) override {
    // Refused here, where the cast to int below would truncate it silently.
    if (bytes > most_registered_bytes()) return abi::kInvalidArgument;
    if constexpr (kVersion >= 8) {
      return table_->reg_mr(comm, data, bytes, kind, mr);
    } else {
      return table_->reg_mr(comm, data, static_cast<int>(bytes), kind, mr);
    }
  }
  int Deregister(void* comm, void* mr) override { return table_->dereg_mr(comm, mr); }

  int Send(void* send_comm, const Message& message, void** request) override {
    if (TooLong(message.bytes)) return abi::kInvalidArgument;
    const auto bytes = static_cast<Size>(message.bytes);
    if constexpr (kVersion >= 10) {
      return table_->isend(send_comm, message.data, bytes, message.tag, message.mr, nullptr,
                           request);
    } else {
      return table_->isend(send_comm, message.data, bytes, message.tag, message.mr, request);
    }
  }
  int Receive(void* recv_comm, const Message& message, void** request) override {
    // irecv always takes a group; one message is a group of one.
    return ReceiveGroup(recv_comm, {&message, 1}, request);
  }
  int ReceiveGroup(void* recv_comm, std::span<const Message> messages, void** request) override {
    std::array<void*, kMaxGrouped> data{};
    std::array<Size, kMaxGrouped> bytes{};
    std::array<int, kMaxGrouped> tags{};
    std::array<void*, kMaxGrouped> mrs{};
    // Null handles of profiler events: v10 takes an array of them, one for each message.
    [[maybe_unused]] std::array<void*, kMaxGrouped> events{};
    if (messages.size() > kMaxGrouped) return abi::kInvalidArgument;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (TooLong(messages[i].bytes)) return abi::kInvalidArgument;
      data[i] = messages[i].data;
      bytes[i] = static_cast<Size>(messages[i].bytes);
      tags[i] = messages[i].tag;
      mrs[i] = messages[i].mr;
    }
    const auto count = static_cast<int>(messages.size());
    if constexpr (kVersion >= 10) {
      return table_->irecv(recv_comm, count, data.data(), bytes.data(), tags.data(), mrs.data(),
                           events.data(), request);
    } else {
      return table_->irecv(recv_comm, count, data.data(), bytes.data(), tags.data(), mrs.data(),
                           request);
    }
  }
  int Flush(void* recv_comm, const Message& message, void** request) override {
    Message m = message;
    auto bytes = static_cast<int>(m.bytes);
    return table_->iflush(recv_comm, 1, &m.data, &bytes, &m.mr, request);
  }
  int Test(void* request, int* done, int* bytes) override {
    return table_->test(request, done, bytes);
  }
  int Consume(void* recv_comm, void* request) override {
    if constexpr (kVersion >= 7) {
      if (can_consume()) return table_->irecv_consumed(recv_comm, 1, request);
    }
    return abi::kSuccess;
  }
  int CloseSend(void* send_comm) override { return table_->close_send(send_comm); }
  int CloseReceive(void* recv_comm) override { return table_->close_recv(recv_comm); }
  int CloseListen(void* listen_comm) override { return table_->close_listen(listen_comm); }

 private:
  static constexpr int kVersion = Table::kVersion;
  using Size = std::conditional_t<(kVersion >= 9), std::size_t, int>;

  static bool TooLong(std::size_t bytes) { return kVersion < 9 && bytes > abi::kMaxMessageV8; }

  static NicFacts FactsOf(const typename Table::Properties& properties) {
    NicFacts facts;
    facts.name = TextOf(properties.name);
    facts.pci_path = TextOf(properties.pci_path);
    facts.guid = properties.guid;
    facts.host_memory = (properties.ptr_support & abi::kPointerHost) != 0;
    facts.cuda_memory = (properties.ptr_support & abi::kPointerCuda) != 0;
    facts.dma_buf = (properties.ptr_support & abi::kPointerDmaBuf) != 0;
    facts.megabits = properties.speed > 0 ? static_cast<std::uint64_t>(properties.speed) : 0;
    facts.port = properties.port;
    facts.latency = properties.latency;
    facts.most_comms = properties.max_comms;
    facts.most_receives = properties.max_recvs;
    facts.most_message_bytes = abi::kMaxMessageV8;
    if constexpr (kVersion >= 7) {
      facts.device_type = properties.device_type;
      facts.device_version = properties.device_version;
      facts.unpacks = properties.device_type == abi::kDeviceTypeUnpack;
    }
    if constexpr (kVersion >= 9) facts.most_message_bytes = properties.max_p2p_bytes;
    return facts;
  }

  Table* const table_;
  void* context_ = nullptr;  // from v11 on
  abi::CommConfig config_;   // from v10 on
};

template <class Table>
std::unique_ptr<Driver> MakeTableDriver(void* table) {
  return std::make_unique<TableDriver<Table>>(static_cast<Table*>(table));
}

}  // namespace

std::unique_ptr<Driver> MakeDriver(int version, void* table) {
  switch (version) {
    case 5: return MakeTableDriver<abi::TableV5>(table);
    case 6: return MakeTableDriver<abi::TableV6>(table);
    case 7: return MakeTableDriver<abi::TableV7>(table);
    case 8: return MakeTableDriver<abi::TableV8>(table);
    case 9: return MakeTableDriver<abi::TableV9>(table);
    case 10: return MakeTableDriver<abi::TableV10>(table);
    case 11: return MakeTableDriver<abi::TableV11>(table);
    case 12: return MakeTableDriver<abi::TableV12>(table);
    default: return nullptr;
  }
}

}  // namespace ferry::tcpx
