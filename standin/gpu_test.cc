// Tests the stand-in's GPU mode with a fake driver; FERRY_STANDIN_TEST_DRIVER=libcuda.so.1 selects
// a real one.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "standin/testing/host.h"

namespace ferry::standin::testing {
namespace {

using ::testing::HasSubstr;

bool IsDriverReal() { return std::getenv("FERRY_STANDIN_TEST_DRIVER") != nullptr; }
const char* DriverFile() {
  const char* const real = std::getenv("FERRY_STANDIN_TEST_DRIVER");
  return real != nullptr ? real : FERRY_FAKE_DRIVER;
}

// Device 0, current on the calling thread, by the driver that the stand-in has loaded.
class DriverDevice final : public Device {
 public:
  DriverDevice() : library_(::dlopen(DriverFile(), RTLD_NOW | RTLD_LOCAL)) {
    Call<int(unsigned)>("cuInit", 0U);
    Push(0);
    Call<int(void**, unsigned, int)>("cuStreamCreateWithPriority", &stream_, 1U, 0);
    Call<int(void**, std::size_t, unsigned)>("cuMemHostAlloc", &pinned_, kPinnedBytes, 0U);
  }
  ~DriverDevice() override {
    Call<int(void*)>("cuMemFreeHost", pinned_);
    Pop();
  }
  DriverDevice(const DriverDevice&) = delete;
  DriverDevice& operator=(const DriverDevice&) = delete;

  // False if there is no such device.
  bool Push(int device) {
    void* context = nullptr;
    if (Find<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device) != 0) return false;
    Call<int(void*)>("cuCtxPushCurrent_v2", context);
    return true;
  }
  void Pop() {
    void* context = nullptr;
    Call<int(void**)>("cuCtxPopCurrent_v2", &context);
  }

  // These three are of the fake driver only.
  int Allocations() { return Find<int()>("ferryFakeAllocations")(); }
  void FailAllocation(int which) { Call<int(int)>("ferryFakeFailAllocation", which); }
  void Throw(bool throws) { Call<int(int)>("ferryFakeThrow", throws ? 1 : 0); }

  std::byte* Allocate(std::size_t bytes) override {
    std::byte* memory = nullptr;
    std::size_t room = bytes + 4096;
    Call<int(std::byte**, std::size_t)>("cuMemAlloc_v2", &memory, room);
    void* aligned = memory;
    return static_cast<std::byte*>(std::align(4096, bytes, aligned, room));
  }
  void Write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    for (std::size_t done = 0; done < bytes; done += kPinnedBytes) {
      const std::size_t piece = std::min(bytes - done, kPinnedBytes);
      std::memcpy(pinned_, from + done, piece);
      Call<int(std::byte*, const void*, std::size_t, void*)>("cuMemcpyHtoDAsync_v2", to + done,
                                                             pinned_, piece, stream_);
      Call<int(void*)>("cuStreamSynchronize", stream_);
    }
  }
  void Read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    for (std::size_t done = 0; done < bytes; done += kPinnedBytes) {
      const std::size_t piece = std::min(bytes - done, kPinnedBytes);
      Call<int(void*, const std::byte*, std::size_t, void*)>("cuMemcpyDtoHAsync_v2", pinned_,
                                                             from + done, piece, stream_);
      Call<int(void*)>("cuStreamSynchronize", stream_);
      std::memcpy(to + done, pinned_, piece);
    }
  }

 private:
  static constexpr std::size_t kPinnedBytes = 1024 * 1024;

  template <class Signature>
  Signature* Find(const char* name) {
    void* const found = library_ == nullptr ? nullptr : ::dlsym(library_, name);
    if (found == nullptr) std::abort();
    Signature* function = nullptr;
    std::memcpy(static_cast<void*>(&function), static_cast<const void*>(&found), sizeof(found));
    return function;
  }
  template <class Signature, class... Arguments>
  void Call(const char* name, Arguments... arguments) {
    if (Find<Signature>(name)(arguments...) != 0) std::abort();
  }

  void* const library_;
  void* stream_ = nullptr;
  void* pinned_ = nullptr;
};

constexpr std::size_t kBytes = std::size_t{8} * 1024 * 1024;
constexpr std::size_t kPiece = std::size_t{512} * 1024;

Instance OnGpu(const std::string& fragments, const char* gpu = "1") {
  return Instance::Initialized(
      {{"GPU", gpu}, {"DRIVER", DriverFile()}, {"FRAGMENTS", fragments}, {"POOL", "16777216"}});
}

void CarryEveryCut(const char* gpu) {
  DriverDevice device;
  for (const char* fragments : {"1448", "4096", "random", "merged"}) {
    const Instance plugin = OnGpu(fragments, gpu);
    Pair pair(plugin, kBytes, &device);
    for (std::size_t at = 0; at < kBytes; at += kPiece) {
      layout::Request* const receive = pair.Receive(at, kPiece);
      ASSERT_EQ(pair.Wait(receive, pair.Send(at, kPiece)), 1);
      ASSERT_EQ(pair.Unpack(receive), kPiece);
      ASSERT_EQ(pair.Consume(receive), abi::kSuccess);
    }
    EXPECT_EQ(std::memcmp(pair.source(), pair.target(), kBytes), 0) << fragments;
    EXPECT_EQ(plugin.PagesInUse(), 0U);
    EXPECT_EQ(plugin.Misuses(), 0U) << plugin.LastMisuse();
  }
}

TEST(StandinGpu, CarriesMemoryOfTheDevice) { CarryEveryCut("1"); }

// By one copy for each run of pages.
TEST(StandinGpu, CarriesPagesThatAreSpread) {
  DriverDevice device;
  const Instance plugin = Instance::Initialized({{"GPU", "1"},
                                                 {"DRIVER", DriverFile()},
                                                 {"POOL", "16777216"},
                                                 {"TOGETHER", "16"},
                                                 {"SPREAD", "3"}});
  Pair pair(plugin, kBytes, &device);
  for (std::size_t at = 0; at < kBytes; at += kPiece) {
    layout::Request* const receive = pair.Receive(at, kPiece);
    ASSERT_EQ(pair.Wait(receive, pair.Send(at, kPiece)), 1);
    ASSERT_EQ(pair.Unpack(receive), kPiece);
    ASSERT_EQ(pair.Consume(receive), abi::kSuccess);
  }
  EXPECT_EQ(std::memcmp(pair.source(), pair.target(), kBytes), 0);
  EXPECT_EQ(plugin.PagesInUse(), 0U);
}

TEST(StandinGpu, UnpacksFromPoolsThatAreMapped) { CarryEveryCut("mapped"); }

TEST(StandinGpu, PoisonsWhatIsConsumed) {
  DriverDevice device;
  const Instance plugin = OnGpu("4096");
  Pair pair(plugin, kPiece, &device);
  layout::Request* const request = pair.Exchange(kPiece);
  ASSERT_NE(request, nullptr);
  const auto fragments = pair.FragmentsOf(request);
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  EXPECT_EQ(plugin.PagesInUse(), 0U);
  for (const Fragment& one : fragments) {
    std::vector<std::byte> there(one.len);
    device.Read(there.data(), pair.unpack().bounce_pool + one.src, one.len);
    EXPECT_EQ(there, std::vector<std::byte>(one.len, std::byte{0xDB}));
  }
}

TEST(StandinGpu, NoticesThatAnotherGpuIsCurrent) {
  DriverDevice device;
  const Instance plugin = OnGpu("4096");
  Pair pair(plugin, kPiece, &device);
  if (!device.Push(1)) GTEST_SKIP() << "there is one GPU only";
  void* mr = nullptr;
  EXPECT_EQ(plugin->reg_mr(pair.recv_comm(), pair.target(), 4096, abi::kPointerCuda, &mr),
            abi::kInternalError);
  EXPECT_EQ(plugin.LastMisuse(), "regMr for a comm of GPU 0 with GPU 1 current");
  void* request = nullptr;
  void* data = pair.target();
  int bytes = 10;
  int tag = 0;
  mr = pair.recv_mr();
  EXPECT_EQ(plugin->irecv(pair.recv_comm(), 1, &data, &bytes, &tag, &mr, &request),
            abi::kInternalError);
  EXPECT_EQ(plugin.LastMisuse(), "irecv for a comm of GPU 0 with GPU 1 current");
  device.Pop();
}

TEST(StandinGpu, ACommIsUsableAfterACallThatThrew) {
  if (IsDriverReal()) GTEST_SKIP() << "a real driver does not throw";
  DriverDevice device;
  const Instance plugin = OnGpu("4096");
  Pair pair(plugin, kPiece, &device);
  void* mr = nullptr;
  device.Throw(true);
  EXPECT_EQ(plugin->reg_mr(pair.recv_comm(), pair.target(), 4096, abi::kPointerCuda, &mr),
            abi::kSystemError);
  device.Throw(false);
  EXPECT_EQ(plugin->reg_mr(pair.recv_comm(), pair.target(), 4096, abi::kPointerCuda, &mr),
            abi::kSuccess);
  EXPECT_EQ(plugin->dereg_mr(pair.recv_comm(), mr), abi::kSuccess);
}

TEST(StandinGpu, AnAcceptThatFailsHalfWayKeepsNoMemory) {
  if (IsDriverReal()) GTEST_SKIP() << "a real driver's allocations do not fail when told";
  DriverDevice device;
  const Instance plugin = OnGpu("4096");
  { const Pair makes_the_pool(plugin, kPiece, &device); }
  const int before = device.Allocations();
  for (const int which : {1, 2, 3}) {
    alignas(8) std::byte handle[abi::kHandleBytes];
    void* listening = nullptr;
    void* sending = nullptr;
    void* receiving = nullptr;
    abi::DeviceHandle* none = nullptr;
    abi::DeviceHandle memory;
    abi::DeviceHandle* device_handle = &memory;
    ASSERT_EQ(plugin->listen(0, handle, &listening), abi::kSuccess);
    device.FailAllocation(which);
    int outcome = abi::kSuccess;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (outcome == abi::kSuccess && receiving == nullptr &&
           std::chrono::steady_clock::now() < end) {
      if (sending == nullptr) {
        ASSERT_EQ(plugin->connect(0, handle, &sending, &none), abi::kSuccess);
      }
      outcome = plugin->accept(listening, &receiving, &device_handle);
    }
    EXPECT_EQ(outcome, abi::kSystemError) << which;
    EXPECT_EQ(device.Allocations(), before) << which;
    if (sending != nullptr) {
      EXPECT_EQ(plugin->close_send(sending), abi::kSuccess);
    }
    EXPECT_EQ(plugin->close_listen(listening), abi::kSuccess);
  }
}

TEST(StandinGpu, DoesNotStartWithoutADriver) {
  const Instance plugin({{"GPU", "1"}, {"DRIVER", "libcuda-that-is-not-there.so"}});
  EXPECT_EQ(plugin.Init(), abi::kSystemError);
  EXPECT_THAT(Warnings(), HasSubstr("libcuda-that-is-not-there.so"));
}

}  // namespace
}  // namespace ferry::standin::testing
