// FunctionRef: a callable that a function takes for the time of its call. It owns nothing and
// allocates nothing, where std::function allocates for a lambda with more than two captures.
#pragma once

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
  template <typename F, typename = std::enable_if_t<std::is_invocable_r_v<R, const F&, Args...>>>
  FunctionRef(const F& callable)  // NOLINT(google-explicit-constructor)
      : callable_(std::addressof(callable)), call_([](const void* of, Args... args) -> R {
          return (*static_cast<const F*>(of))(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(callable_, std::forward<Args>(args)...); }

 private:
  const void* callable_;
  R (*call_)(const void* of, Args... args);
};

}  // namespace rudder
