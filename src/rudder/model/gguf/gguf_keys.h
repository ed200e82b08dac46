// The metadata of a GGUF file below its architecture's name, and which keys of it were read. For
// gguf_config.cpp and its parts; load time, one thread.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/gguf/gguf_config.h"
#include "rudder/model/gguf/gguf_names.h"

namespace rudder::model {

inline constexpr int64_t kMostGguf = int64_t{1} << 28;  // of a size; archs/ has closer bounds

// A number as the shortest text that is the same f32: writers make f32 of the config's numbers.
inline double shortest(double value) {
  char text[64];
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  const auto written = std::to_chars(text, text + sizeof(text), narrow);
  double out = value;
  std::from_chars(text, written.ptr, out);
  return out;
}

struct GgufKeys {
  // All outlive it.
  GgufKeys(const GgufSource& source, const GgufArchitecture& architecture)
      : source(source), gguf(source.metadata), architecture(architecture) {}

  bool is(std::string_view name) const { return architecture.name == name; }

  // The whole key; it counts as read.
  std::string key(std::string_view name) {
    read.emplace(name);
    return fmt::format("{}.{}", architecture.name, name);
  }
  bool has(std::string_view name) { return gguf.has(key(name)); }

  tl::unexpected<Error> contradiction(std::string message, std::string_view name) {
    return fail(ErrorCode::kUnsupported, std::move(message), gguf.where(key(name)));
  }

  Result<int64_t> size(std::string_view name) { return gguf.integer(key(name), 1, kMostGguf); }
  // Of a key that may be a list with an entry for each layer: `count` entries, or one for all.
  Result<std::vector<int64_t>> sizes(std::string_view name, int64_t count) {
    const std::string whole = key(name);
    const auto found = gguf.values().find(whole);
    if (found == gguf.values().end() || !found->second.is_array) {
      RUDDER_TRY(const int64_t one, size(name));
      return std::vector<int64_t>(static_cast<size_t>(count), one);
    }
    RUDDER_TRY(const std::vector<double> stored, gguf.numbers(whole));
    std::vector<int64_t> all;
    for (const double one : stored) {
      if (!(one >= 1 && one <= static_cast<double>(kMostGguf))) {
        return contradiction("a size of a layer is out of bounds", name);
      }
      all.push_back(static_cast<int64_t>(one));
    }
    if (std::ssize(all) == count) return all;
    return contradiction(fmt::format("{} entries for {} layers", all.size(), count), name);
  }
  // All of them must be the same.
  Result<int64_t> size_of_all(std::string_view name) {
    const std::string whole = key(name);
    const auto found = gguf.values().find(whole);
    if (found == gguf.values().end() || !found->second.is_array) return size(name);
    RUDDER_TRY(const std::vector<double> stored, gguf.numbers(whole));
    if (stored.empty() || std::ranges::count(stored, stored.front()) != std::ssize(stored) ||
        stored.front() < 1 || stored.front() > kMostGguf) {
      return contradiction("layers of different sizes are not served", name);
    }
    return static_cast<int64_t>(stored.front());
  }
  Result<void> copy_size(std::string_view name, std::string_view target) {
    RUDDER_TRY(const int64_t value, size_of_all(name));
    out[target] = value;
    return {};
  }
  Result<void> copy_number(std::string_view name, std::string_view target,
                           boost::json::object& to) {
    if (!has(name)) return {};
    RUDDER_TRY(const double value, gguf.number(key(name)));
    to[target] = shortest(value);
    return {};
  }

  const GgufSource& source;
  const weights::GgufFile& gguf;
  const GgufArchitecture& architecture;
  std::set<std::string, std::less<>> read;  // names behind the architecture's
  boost::json::object out;                  // the config.json
};

// The keys of mixtures of experts. Without any nothing is added.
Result<void> add_gguf_experts(GgufKeys& keys, int64_t num_layers);
// All heads, windows and ropes of Gemma 4, and what its small models have besides.
Result<void> add_gguf_gemma4(GgufKeys& keys, int64_t num_layers);

}  // namespace rudder::model
