// Interface to device memory: real GPU memory or host memory.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace ferry::standin {

// A copy into memory of the device.
struct Placement {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;  // pinned
  std::size_t bytes = 0;
};

// Operations that differ between GPU memory and its host substitute. Any thread may call them; all
// except Poison() return when their work is done. Failures are logged.
class Memory {
 public:
  virtual ~Memory() = default;

  // The device that is current on the calling thread; -1 if there is none.
  virtual int CurrentDevice() = 0;
  // At a boundary of 256 bytes at least; null if there is not that much.
  virtual std::byte* AllocateDevice(int device, std::size_t bytes) = 0;
  virtual void FreeDevice(int device, std::byte* memory) = 0;
  // Memory of the host's that the device reaches, zeroed.
  virtual std::byte* AllocatePinned(int device, std::size_t bytes) = 0;
  virtual void FreePinned(int device, std::byte* memory) = 0;
  // The device address of pinned memory.
  virtual std::byte* DeviceAddress(int device, std::byte* pinned) = 0;

  virtual bool Place(int device, std::span<const Placement> placements) = 0;
  // From the device to pinned memory.
  virtual bool Fetch(int device, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Fills with kPoison, by and by: IsPoisoned() says when, and is asked until it has said so.
  // Null: it is done.
  virtual void* Poison(int device, std::span<const std::span<std::byte>> memory) = 0;
  virtual bool IsPoisoned(int device, void* poisoning) = 0;

  static constexpr unsigned char kPoison = 0xDB;
};

std::unique_ptr<Memory> HostMemory();
// Null if the driver cannot be loaded.
std::unique_ptr<Memory> GpuMemory(const std::string& driver);
// Pools and handles in pinned memory, so that nothing is asked of the device for a receive.
std::unique_ptr<Memory> MappedMemory(const std::string& driver);

}  // namespace ferry::standin
