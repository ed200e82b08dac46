// FunctionRef: a callable that a function takes for the time of its call. It owns nothing and
// allocates nothing, where std::function allocates for a lambda with more than two captures.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace rudder {

template <typename Signature>
class FunctionRef;

template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  // Implicit, so that a lambda is passed as it is. `callable` must outlive this.
  template <typename F>
  requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef> &&
           std::is_object_v<std::remove_reference_t<F>> && std::is_invocable_r_v<R, F&, Args...>)
      FunctionRef(F&& callable)  // NOLINT(google-explicit-constructor)
      : callable_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* of, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(of))(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(callable_, std::forward<Args>(args)...); }

 private:
  void* callable_;
  R (*call_)(void* of, Args... args);
};

}  // namespace rudder
