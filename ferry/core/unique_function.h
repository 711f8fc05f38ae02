// A move-only std::function.
#pragma once
#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "ferry/core/check.h"

namespace ferry {

template <class Signature>
class UniqueFunction;

// A callable that is moved and never copied, so it may own move-only state. Callables of up to
// kInlineBytes with a non-throwing move are stored inside the object, others on the heap. Not
// thread-safe; moving leaves the source empty. Replaces std::move_only_function, which g++ 12 has
// only with -std=c++23.
template <class R, class... Args>
class UniqueFunction<R(Args...)> {
 public:
  static constexpr std::size_t kInlineBytes = 48;

  UniqueFunction() noexcept = default;
  UniqueFunction(std::nullptr_t) noexcept {}  // NOLINT: implicit, as in std::function
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, UniqueFunction> &&
           std::is_invocable_r_v<R, std::decay_t<F>&, Args...>)
      UniqueFunction(F&& callable) {  // NOLINT: implicit, as in std::function
    using Callable = std::decay_t<F>;
    if constexpr (FitsInline<Callable>()) {
      ::new (static_cast<void*>(storage_)) Callable(std::forward<F>(callable));
      ops_ = &kInlineOps<Callable>;
    } else {
      ::new (static_cast<void*>(storage_)) Callable*(new Callable(std::forward<F>(callable)));
      ops_ = &kHeapOps<Callable>;
    }
  }
  UniqueFunction(UniqueFunction&& other) noexcept { TakeFrom(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this == &other) return *this;
    Clear();
    TakeFrom(other);
    return *this;
  }
  UniqueFunction& operator=(std::nullptr_t) noexcept {
    Clear();
    return *this;
  }
  ~UniqueFunction() { Clear(); }

  explicit operator bool() const noexcept { return ops_ != nullptr; }
  // Calling an empty function aborts.
  R operator()(Args... args) {
    FERRY_CHECK(ops_ != nullptr);
    return ops_->call(storage_, std::forward<Args>(args)...);
  }

  template <class Callable>
  static constexpr bool FitsInline() noexcept {
    return sizeof(Callable) <= kInlineBytes && alignof(Callable) <= alignof(std::max_align_t) &&
           std::is_nothrow_move_constructible_v<Callable>;
  }

 private:
  struct Ops {
    R (*call)(void* storage, Args&&... args);
    // Moves the callable into raw storage and destroys the old one.
    void (*relocate)(void* from, void* to) noexcept;
    void (*destroy)(void* storage) noexcept;
  };

  template <class T>
  static T& As(void* storage) noexcept {
    return *std::launder(static_cast<T*>(storage));
  }

  template <class Callable>
  static R Call(Callable& callable, Args&&... args) {
    if constexpr (std::is_void_v<R>) {
      static_cast<void>(callable(std::forward<Args>(args)...));
    } else {
      return callable(std::forward<Args>(args)...);
    }
  }

  template <class Callable>
  static constexpr Ops kInlineOps = {
      [](void* storage, Args&&... args) -> R {
        return Call(As<Callable>(storage), std::forward<Args>(args)...);
      },
      [](void* from, void* to) noexcept {
        ::new (to) Callable(std::move(As<Callable>(from)));
        std::destroy_at(&As<Callable>(from));
      },
      [](void* storage) noexcept { std::destroy_at(&As<Callable>(storage)); }};

  template <class Callable>
  static constexpr Ops kHeapOps = {
      [](void* storage, Args&&... args) -> R {
        return Call(*As<Callable*>(storage), std::forward<Args>(args)...);
      },
      [](void* from, void* to) noexcept { ::new (to) Callable*(As<Callable*>(from)); },
      [](void* storage) noexcept { delete As<Callable*>(storage); }};

  void TakeFrom(UniqueFunction& other) noexcept {
    if (other.ops_ == nullptr) return;
    other.ops_->relocate(other.storage_, storage_);
    ops_ = std::exchange(other.ops_, nullptr);
  }

  // Clears ops_ first: the callable's destructor may access this object again.
  void Clear() noexcept {
    if (const Ops* ops = std::exchange(ops_, nullptr)) ops->destroy(storage_);
  }

  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[kInlineBytes];
};

}  // namespace ferry
