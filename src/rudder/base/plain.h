// kIsPlain<T>: T is values all the way down: no pointer, no reference, no function, no object with
// behaviour behind it. Such a T could be written to bytes and read in another process. Decided by
// the compiler over every member, so that a member that is added is judged as well. For tests.
//
// Plain are numbers, enums, strings, ids, and lists, options, pairs and variants of what is plain;
// of structs, those that are aggregates with plain members alone. Everything else is not.
#pragma once

#include <array>
#include <boost/container/small_vector.hpp>
#include <boost/pfr/core.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/base/ids.h"

namespace rudder {

template <typename T>
struct IsPlain;

template <typename T>
inline constexpr bool kIsPlain = IsPlain<T>::value;

template <typename T, size_t... I>
constexpr bool has_plain_members(std::index_sequence<I...> /*members*/) {
  return (kIsPlain<boost::pfr::tuple_element_t<I, T>> && ...);
}

template <typename T>
struct IsPlain {
  static constexpr bool value = [] {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      return true;
    } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T> &&
                         !std::is_polymorphic_v<T>) {
      return has_plain_members<T>(std::make_index_sequence<boost::pfr::tuple_size_v<T>>());
    } else {
      return false;
    }
  }();
};

template <>
struct IsPlain<std::string> : std::true_type {};
template <typename Tag, typename Int>
struct IsPlain<StrongId<Tag, Int>> : std::true_type {};
template <typename T>
struct IsPlain<std::vector<T>> : IsPlain<T> {};
template <typename T, size_t N>
struct IsPlain<boost::container::small_vector<T, N>> : IsPlain<T> {};
template <typename T, size_t N>
struct IsPlain<std::array<T, N>> : IsPlain<T> {};
template <typename T>
struct IsPlain<std::optional<T>> : IsPlain<T> {};
template <typename A, typename B>
struct IsPlain<std::pair<A, B>> : std::bool_constant<kIsPlain<A> && kIsPlain<B>> {};
template <typename... T>
struct IsPlain<std::variant<T...>> : std::bool_constant<(kIsPlain<T> && ...)> {};

}  // namespace rudder
