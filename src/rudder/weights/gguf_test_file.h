// GGUF files for tests, by hand: also what a writer would not write.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::weights {

class GgufBytes {
 public:
  template <typename T>
  GgufBytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufBytes& raw(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  GgufBytes& text(std::string_view text) { return put(uint64_t{text.size()}).raw(text); }
  GgufBytes& header(uint32_t version, uint64_t tensors, uint64_t values) {
    return raw("GGUF").put(version).put(tensors).put(values);
  }
  GgufBytes& key(std::string_view name, uint32_t type) { return text(name).put(type); }
  GgufBytes& value(std::string_view name, std::string_view value) {
    return key(name, 8).text(value);
  }
  GgufBytes& value(std::string_view name, uint32_t value) { return key(name, 4).put(value); }
  GgufBytes& value(std::string_view name, float value) { return key(name, 6).put(value); }
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& extents, uint32_t type,
                    uint64_t offset) {
    text(name).put(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) put(extent);
    return put(type).put(offset);
  }
  GgufBytes& pad(size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBytes& data(size_t count) {
    bytes_.append(count, 'd');
    return *this;
  }
  const std::string& str() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

}  // namespace rudder::weights
