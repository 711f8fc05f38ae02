// The owner template for C handles.
#pragma once
#include <utility>

namespace ferry {

// The sole owner of a C handle. Traits supply `Handle`, `kInvalid` and `Destroy(Handle) noexcept`.
template <class Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) noexcept : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    UniqueHandle(std::move(other)).swap(*this);
    return *this;
  }
  ~UniqueHandle() {
    if (handle_ != Traits::kInvalid) Traits::Destroy(handle_);
  }

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != Traits::kInvalid; }
  // Gives up ownership without destroying the handle.
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, Traits::kInvalid); }
  void reset() noexcept { UniqueHandle().swap(*this); }
  void swap(UniqueHandle& other) noexcept { std::swap(handle_, other.handle_); }

 private:
  Handle handle_ = Traits::kInvalid;
};

}  // namespace ferry
