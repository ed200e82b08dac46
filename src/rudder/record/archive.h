// Archives: plain data to bytes and back, for recordings (recording.h). Little-endian; numbers and
// enumerators as they lie in memory, a list as its length (8 bytes) and its elements, a pointer as
// a byte that says whether there is anything behind it. A struct is what its fields() lists
// (plan_fields.h). Any thread; one archive belongs to one caller.
//
// The reader takes bytes of a file, so it checks all of them: what runs past the end, an enumerator
// that does not exist or a bool that is neither 0 nor 1 makes it fail, and what it gives from then
// on is zero. Nothing is allocated ahead of the bytes that fill it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rudder/base/ids.h"

namespace rudder::record {

static_assert(std::endian::native == std::endian::little);

// The enumerator with the largest value; specialised for every enum that is archived.
template <typename E>
inline constexpr E kLastOf = E::no_last_enumerator_is_declared;

template <typename T>
concept ArchivedNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

class ArchiveWriter {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

  void require(bool /*holds*/) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

 private:
  void put_bytes(const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  template <ArchivedNumber T>
  void put(const T& value) {
    put_bytes(&value, sizeof value);
  }
  template <typename T>
  requires std::is_enum_v<T>
  void put(const T& value) { put(static_cast<std::underlying_type_t<T>>(value)); }
  void put(const bool& value) { put(static_cast<uint8_t>(value)); }
  void put(const std::string& text) {
    put(static_cast<uint64_t>(text.size()));
    put_bytes(text.data(), text.size());
  }
  template <typename Tag, typename Int>
  void put(const StrongId<Tag, Int>& id) {
    put(id.value);
  }
  template <typename A, typename B>
  void put(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    put(static_cast<uint64_t>(list.size()));
    if constexpr (ArchivedNumber<T>) {
      put_bytes(list.data(), list.size() * sizeof(T));
    } else {
      for (const T& element : list) put(element);
    }
  }
  template <typename T>
  void put(const std::shared_ptr<const T>& pointer) {
    put(pointer != nullptr);
    if (pointer != nullptr) put(*pointer);
  }
  template <typename T>
  requires std::is_class_v<T>
  void put(const T& value) { fields(*this, value); }

  std::vector<std::byte> bytes_;
};

class ArchiveReader {
 public:
  explicit ArchiveReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (get(values), ...);
  }

  // What fields() asks of what it has read.
  void require(bool holds) { failed_ = failed_ || !holds; }

  // Every byte was read, and all of them made sense.
  bool complete() const { return !failed_ && rest_.empty(); }

 private:
  void get_bytes(void* data, size_t size) {
    if (size > rest_.size()) failed_ = true;
    if (failed_ || size == 0) return;
    std::memcpy(data, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }
  template <ArchivedNumber T>
  void get(T& value) {
    value = {};
    get_bytes(&value, sizeof value);
  }
  template <typename T>
  requires std::is_enum_v<T>
  void get(T& value) {
    std::underlying_type_t<T> number = 0;
    get(number);
    // A negative one is larger than all.
    if (static_cast<uint64_t>(number) > static_cast<uint64_t>(kLastOf<T>)) failed_ = true;
    value = failed_ ? T{} : static_cast<T>(number);
  }
  void get(bool& value) {
    uint8_t number = 0;
    get(number);
    if (number > 1) failed_ = true;
    value = !failed_ && number == 1;
  }
  // Of a list; 0 when the rest of the bytes cannot hold so many elements.
  uint64_t get_length(size_t element_bytes) {
    uint64_t length = 0;
    get(length);
    if (length > rest_.size() / element_bytes) failed_ = true;
    return failed_ ? 0 : length;
  }
  void get(std::string& text) {
    text.resize(get_length(1));
    get_bytes(text.data(), text.size());
  }
  template <typename Tag, typename Int>
  void get(StrongId<Tag, Int>& id) {
    get(id.value);
  }
  template <typename A, typename B>
  void get(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void get(std::vector<T>& list) {
    list.clear();
    if constexpr (ArchivedNumber<T>) {
      list.resize(get_length(sizeof(T)));
      get_bytes(list.data(), list.size() * sizeof(T));
    } else {
      const uint64_t length = get_length(1);
      for (uint64_t i = 0; i < length && !failed_; ++i) get(list.emplace_back());
    }
  }
  template <typename T>
  void get(std::shared_ptr<const T>& pointer) {
    bool is_there = false;
    get(is_there);
    pointer.reset();
    if (!is_there) return;
    auto value = std::make_shared<T>();
    get(*value);
    pointer = std::move(value);
  }
  template <typename T>
  requires std::is_class_v<T>
  void get(T& value) { fields(*this, value); }

  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace rudder::record
