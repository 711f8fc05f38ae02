// Conversions between pointers and numeric addresses.
#pragma once
#include <cstdint>

// Addresses that this process may be unable to dereference are passed as numbers.
namespace ferry::cuda {

inline std::uint64_t AddressOf(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}
template <class T = void>
T* PointerTo(std::uint64_t address) noexcept {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

}  // namespace ferry::cuda
