// A non-owning view of a callable.
#pragma once
#include <memory>
#include <type_traits>
#include <utility>

namespace ferry {

template <class Signature>
class FunctionRef;

// A view of a callable: two words, passed by value. Must not be stored beyond the call that it is
// passed to.
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& callable) noexcept  // NOLINT: implicit by design, like string_view
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

}  // namespace ferry
