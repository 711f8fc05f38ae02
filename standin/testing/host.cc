// Implements the minimal host of the stand-in's tests.

#include "standin/testing/host.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace ferry::standin::testing {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr const char* kPrefix = "FERRY_STANDIN_";

class TestDeadline {
 public:
  bool Holds() const { return std::chrono::steady_clock::now() < end_; }

 private:
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + kTimeout;
};

struct Lines {
  std::mutex mutex;
  std::string text;
};

Lines& AllLines() {
  static auto* const lines = new Lines;  // for good: threads of the plugin outlive main()
  return *lines;
}

// NOLINTNEXTLINE(cert-dcl50-cpp): NCCL's
void Collect(int level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
             const char* format, ...) {
  char text[1024];
  std::va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (level != abi::kLogWarn) return;
  (void)std::fprintf(stderr, "%s\n", text);
  Lines& lines = AllLines();
  const std::lock_guard lock(lines.mutex);
  lines.text += text;
  lines.text += '\n';
}

template <class Symbol>
void Find(void* library, const char* name, Symbol* symbol) {
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  if (found == nullptr) std::abort();  // without it there is nothing to test
  std::memcpy(static_cast<void*>(symbol), static_cast<const void*>(&found), sizeof(found));
}

}  // namespace

std::string Warnings() {
  Lines& lines = AllLines();
  const std::lock_guard lock(lines.mutex);
  return lines.text;
}

Instance::Instance(const Variables& variables) : variables_(variables) {
  const ScopedVariables set(variables, kPrefix);
  const LibraryCopy copy(StandInFile());
  void* const library = ::dlopen(copy.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) (void)std::fprintf(stderr, "%s\n", ::dlerror());
  Find(library, "ncclNetPlugin_v7", &table_);
  Find(library, "ferry_standin_misuses", &misuses_);
  Find(library, "ferry_standin_last_misuse", &last_misuse_);
  Find(library, "ferry_standin_reset", &reset_);
  Find(library, "ferry_standin_pages_in_use", &pages_in_use_);
}

Instance Instance::Initialized(const Variables& variables) {
  Instance instance(variables);
  EXPECT_EQ(instance.Init(), abi::kSuccess);
  return instance;
}

int Instance::Init() const {
  const ScopedVariables set(variables_, kPrefix);
  return table_->init(Collect);
}

// ---- Pair ---------------------------------------------------------------------------------------

Pair::Pair(const Instance& plugin, std::size_t bytes, Device* device)
    : Pair(plugin, plugin, bytes, device) {}

Pair::Pair(const Instance& sender, const Instance& receiver, std::size_t bytes, Device* device)
    : sender_(sender),
      receiver_(receiver),
      device_(device),
      source_(MakePattern(bytes, 1)),
      target_(MakePages(bytes)),
      sent_from_(device == nullptr ? source() : device->Allocate(bytes)),
      received_at_(device == nullptr ? target() : device->Allocate(bytes)) {
  if (device != nullptr) device->Write(sent_from_, source(), bytes);
  EXPECT_EQ(receiver_->listen(0, handle_, &listen_comm_), abi::kSuccess);
  abi::DeviceHandle* device_handle = &device_handle_;
  abi::DeviceHandle* none = nullptr;
  int outcome = abi::kSuccess;
  for (const TestDeadline timeout; outcome == abi::kSuccess && timeout.Holds();) {
    if (send_comm_ == nullptr) outcome = sender_->connect(0, handle_, &send_comm_, &none);
    if (recv_comm_ == nullptr && outcome == abi::kSuccess) {
      outcome = receiver_->accept(listen_comm_, &recv_comm_, &device_handle);
    }
    if (send_comm_ != nullptr && recv_comm_ != nullptr) break;
  }
  EXPECT_EQ(outcome, abi::kSuccess);
  if (send_comm_ == nullptr || recv_comm_ == nullptr) std::abort();  // nothing else can be tested
  EXPECT_EQ(receiver_->close_listen(listen_comm_), abi::kSuccess);
  EXPECT_EQ(device_handle_.type, abi::kDeviceTypeUnpack);
  EXPECT_EQ(device_handle_.version, abi::kDeviceVersionUnpack);
  EXPECT_EQ(device_handle_.size, sizeof(layout::UnpackHandle));
  EXPECT_EQ(device_handle_.needs_proxy_progress, 1);
  ReadPool(static_cast<std::byte*>(static_cast<void*>(&unpack_)),
           static_cast<const std::byte*>(device_handle_.handle), sizeof(unpack_));
  const int size = static_cast<int>(bytes);
  EXPECT_EQ(sender_->reg_mr(send_comm_, sent_from_, size, abi::kPointerCuda, &send_mr_), 0);
  EXPECT_EQ(receiver_->reg_mr(recv_comm_, received_at_, size, abi::kPointerCuda, &recv_mr_), 0);
}

Pair::~Pair() {
  CloseSend();
  CloseRecv();
}

void Pair::CloseSend() {
  if (send_comm_ == nullptr) return;
  EXPECT_EQ(sender_->dereg_mr(send_comm_, send_mr_), abi::kSuccess);
  EXPECT_EQ(sender_->close_send(std::exchange(send_comm_, nullptr)), abi::kSuccess);
}

void Pair::CloseRecv() {
  if (recv_comm_ == nullptr) return;
  EXPECT_EQ(receiver_->dereg_mr(recv_comm_, recv_mr_), abi::kSuccess);
  EXPECT_EQ(receiver_->close_recv(std::exchange(recv_comm_, nullptr)), abi::kSuccess);
}

layout::Request* Pair::Send(std::size_t offset, std::size_t bytes) {
  void* request = nullptr;
  int outcome = abi::kSuccess;
  for (const TestDeadline timeout; outcome == abi::kSuccess && request == nullptr;) {
    outcome = sender_->isend(send_comm_, sent_from_ + offset, static_cast<int>(bytes), 0, send_mr_,
                             &request);
    if (!timeout.Holds()) break;
  }
  EXPECT_EQ(outcome, abi::kSuccess);
  EXPECT_NE(request, nullptr);
  return static_cast<layout::Request*>(request);
}

layout::Request* Pair::Receive(std::size_t offset, std::size_t bytes) {
  void* request = nullptr;
  void* data = received_at_ + offset;
  int size = static_cast<int>(bytes);
  int tag = 0;
  EXPECT_EQ(receiver_->irecv(recv_comm_, 1, &data, &size, &tag, &recv_mr_, &request),
            abi::kSuccess);
  EXPECT_NE(request, nullptr);
  return static_cast<layout::Request*>(request);
}

int Pair::Test(layout::Request* request) const {
  int done = 0;
  int bytes = -77;
  const Instance& plugin = request->operation == 0 ? sender_ : receiver_;
  const int outcome = plugin->test(request, &done, &bytes);
  EXPECT_EQ(bytes, -77) << "test() is not to write sizes";
  return outcome == abi::kSuccess ? done : -outcome;
}

int Pair::Wait(layout::Request* mine, layout::Request* peers) const {
  int outcome = 0;
  for (const TestDeadline timeout; (outcome == 0 || peers != nullptr) && timeout.Holds();) {
    if (peers != nullptr && Test(peers) != 0) peers = nullptr;
    if (outcome == 0) outcome = Test(mine);
  }
  return outcome;
}

int Pair::Consume(layout::Request* request) const {
  return receiver_->irecv_consumed(recv_comm_, 1, request);
}

layout::Request* Pair::Exchange(std::size_t bytes) {
  layout::Request* const receive = Receive(0, bytes);
  layout::Request* const send = Send(0, bytes);
  if (receive == nullptr || send == nullptr) return nullptr;
  int sent = 0;
  int received = 0;
  for (const TestDeadline timeout; (sent == 0 || received == 0) && timeout.Holds();) {
    if (sent == 0) sent = Test(send);
    if (received == 0) received = Test(receive);
    if (sent < 0 || received < 0) return nullptr;
  }
  return sent == 1 && received == 1 ? receive : nullptr;
}

std::vector<Fragment> Pair::FragmentsOf(const layout::Request* request) const {
  const std::uint64_t count = std::atomic_ref(*request->count).load(std::memory_order_acquire);
  const Fragment* const row = unpack_.meta->rows[request->row];
  return {row, row + count};
}

std::size_t Pair::Unpack(const layout::Request* request) const {
  std::size_t bytes = 0;
  std::byte* const to = target() + (static_cast<std::byte*>(request->data) - received_at_);
  for (const Fragment& one : FragmentsOf(request)) {
    ReadPool(to + one.dst, unpack_.bounce_pool + one.src, one.len);
    bytes += one.len;
  }
  return bytes;
}

void Pair::ReadPool(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (device_ != nullptr) return device_->Read(to, from, bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace ferry::standin::testing
