// Plain values (base/plain.h) as bytes, for another process of the same binary: numbers as they lie
// in memory, lists and texts with their count in front, options and variants with what they hold,
// structs member by member. So a member that is added travels, too. Whoever reads is told where the
// bytes are not of that type; it never reads behind them, and no count is believed before its
// elements came. Any thread.
#pragma once

#include <array>
#include <boost/container/small_vector.hpp>
#include <boost/pfr/core.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/base/ids.h"
#include "rudder/base/plain.h"

namespace rudder {

// How a type is written and read. A specialisation for a type that is not plain says what of it
// travels.
template <typename T>
struct PlainBytes;

template <typename T>
void write_plain(std::string& out, const T& value) {
  PlainBytes<T>::write(out, value);
}

// False: the bytes in front are not a T. They are taken off `in` as far as they were read.
template <typename T>
[[nodiscard]] bool read_plain(std::string_view& in, T& value) {
  return PlainBytes<T>::read(in, value);
}

// The number of values of an enum that has them from 0 on without a gap; 0: any number is taken.
template <typename Enum>
inline constexpr uint64_t kNumValues = 0;

template <typename T>
struct PlainBytes {
  static void write(std::string& out, const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      out.append(reinterpret_cast<const char*>(&value), sizeof(T));
    } else {
      static_assert(std::is_aggregate_v<T>, "what of it travels?");
      boost::pfr::for_each_field(value, [&](const auto& member) { write_plain(out, member); });
    }
  }

  static bool read(std::string_view& in, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      if (!read_plain(in, byte) || byte > 1) return false;
      value = byte == 1;
      return true;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      if (in.size() < sizeof(T)) return false;
      std::memcpy(&value, in.data(), sizeof(T));
      in.remove_prefix(sizeof(T));
      if constexpr (std::is_enum_v<T> && kNumValues<T> != 0) {
        return static_cast<uint64_t>(value) < kNumValues<T>;
      }
      return true;
    } else {
      bool is_read = true;
      boost::pfr::for_each_field(
          value, [&](auto& member) { is_read = is_read && read_plain(in, member); });
      return is_read;
    }
  }
};

inline void write_count(std::string& out, size_t count) {
  write_plain(out, static_cast<uint64_t>(count));
}
// False where there are fewer bytes than elements: none takes no byte at all.
inline bool read_count(std::string_view& in, size_t& count) {
  uint64_t told = 0;
  if (!read_plain(in, told) || told > in.size()) return false;
  count = static_cast<size_t>(told);
  return true;
}

template <>
struct PlainBytes<std::string> {
  static void write(std::string& out, const std::string& value) {
    write_count(out, value.size());
    out.append(value);
  }
  static bool read(std::string_view& in, std::string& value) {
    size_t count = 0;
    if (!read_count(in, count)) return false;
    value.assign(in.substr(0, count));
    in.remove_prefix(count);
    return true;
  }
};

template <typename Tag, typename Int>
struct PlainBytes<StrongId<Tag, Int>> {
  static void write(std::string& out, const StrongId<Tag, Int>& id) { write_plain(out, id.value); }
  static bool read(std::string_view& in, StrongId<Tag, Int>& id) {
    return read_plain(in, id.value);
  }
};

// Of lists that grow.
template <typename List>
struct ListBytes {
  using Element = typename List::value_type;
  static constexpr bool kIsBlock = std::is_arithmetic_v<Element> && !std::is_same_v<Element, bool>;

  static void write(std::string& out, const List& list) {
    write_count(out, list.size());
    if constexpr (kIsBlock) {
      out.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(Element));
    } else {
      for (const Element& element : list) write_plain(out, element);
    }
  }

  static bool read(std::string_view& in, List& list) {
    size_t count = 0;
    list.clear();
    if (!read_count(in, count)) return false;
    if constexpr (kIsBlock) {
      if (count > in.size() / sizeof(Element)) return false;
      list.resize(count);
      if (count != 0) std::memcpy(list.data(), in.data(), count * sizeof(Element));
      in.remove_prefix(count * sizeof(Element));
    } else {
      for (size_t i = 0; i < count; ++i) {
        Element element;
        if (!read_plain(in, element)) return false;
        list.push_back(std::move(element));
      }
    }
    return true;
  }
};

template <typename T>
struct PlainBytes<std::vector<T>> : ListBytes<std::vector<T>> {};
template <typename T, size_t N>
struct PlainBytes<boost::container::small_vector<T, N>>
    : ListBytes<boost::container::small_vector<T, N>> {};

template <typename T, size_t N>
struct PlainBytes<std::array<T, N>> {
  static void write(std::string& out, const std::array<T, N>& values) {
    for (const T& value : values) write_plain(out, value);
  }
  static bool read(std::string_view& in, std::array<T, N>& values) {
    for (T& value : values) {
      if (!read_plain(in, value)) return false;
    }
    return true;
  }
};

template <typename T>
struct PlainBytes<std::optional<T>> {
  static void write(std::string& out, const std::optional<T>& value) {
    write_plain(out, value.has_value());
    if (value) write_plain(out, *value);
  }
  static bool read(std::string_view& in, std::optional<T>& value) {
    bool is_there = false;
    value.reset();
    if (!read_plain(in, is_there)) return false;
    return !is_there || read_plain(in, value.emplace());
  }
};

template <typename A, typename B>
struct PlainBytes<std::pair<A, B>> {
  static void write(std::string& out, const std::pair<A, B>& both) {
    write_plain(out, both.first);
    write_plain(out, both.second);
  }
  static bool read(std::string_view& in, std::pair<A, B>& both) {
    return read_plain(in, both.first) && read_plain(in, both.second);
  }
};

template <typename... T>
struct PlainBytes<std::variant<T...>> {
  using Variant = std::variant<T...>;

  static void write(std::string& out, const Variant& value) {
    write_plain(out, static_cast<uint8_t>(value.index()));
    std::visit([&](const auto& held) { write_plain(out, held); }, value);
  }
  static bool read(std::string_view& in, Variant& value) {
    uint8_t index = 0;
    if (!read_plain(in, index) || index >= sizeof...(T)) return false;
    return read_held(in, value, index, std::index_sequence_for<T...>());
  }

 private:
  template <size_t... I>
  static bool read_held(std::string_view& in, Variant& value, size_t index,
                        std::index_sequence<I...> /*alternatives*/) {
    return ((index == I && read_plain(in, value.template emplace<I>())) || ...);
  }
};

}  // namespace rudder
