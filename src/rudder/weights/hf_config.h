// HfConfig: a Hugging Face config.json as typed fields. model/archs reads it at load time, on one
// thread. Values are copied out; a view of a nested object keeps the document alive. A key that is
// missing, ill-typed or out of range gives an Error whose `where` is the file and the path of the
// key. JSON null counts as absent. It remembers which keys were asked for, so that the keys which
// an architecture does not read can be checked.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::weights {

class HfConfig {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // `text` must be one JSON object; `where` names it in errors ("config.json"). The word Infinity,
  // which Python writes, is a number beyond doubles.
  static Result<HfConfig> parse(std::string_view text, std::string where);

  // This object with the keys of `defaults`, a JSON object, where it has none.
  HfConfig with_defaults(std::string_view defaults) const;
  HfConfig with_defaults(const HfConfig& defaults) const;  // of another place of the same file
  // The same, but a null of this object stays.
  HfConfig with_missing(const HfConfig& defaults) const;

  // This object with these keys alone; nobody asks for the others.
  HfConfig only(std::span<const std::string_view> keys) const;

  bool has(std::string_view key) const;  // present and not null
  // These two do not count as asking for it.
  bool is_null(std::string_view key) const;
  bool is_object(std::string_view key) const;
  std::vector<std::string> keys() const;  // in the order of the file
  // Keys with a value that nobody has asked for, of this object or of a copy of it.
  std::vector<std::string> unread_keys() const;

  Result<int64_t> integer(std::string_view key, int64_t low, int64_t high = kNoLimit) const;
  Result<double> number(std::string_view key) const;  // finite
  Result<bool> boolean(std::string_view key) const;
  Result<std::string> string(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;
  // The same, and infinities: a number beyond doubles, or {"__float__": "Infinity"}.
  Result<std::vector<double>> limits(std::string_view key) const;
  Result<std::vector<std::string>> strings(std::string_view key) const;
  // One integer or a list of them (eos_token_id).
  Result<std::vector<int64_t>> integers(std::string_view key, int64_t low, int64_t high) const;
  Result<HfConfig> object(std::string_view key) const;

  // The same with a value for an absent key; an ill-typed one is still an error.
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t low,
                             int64_t high = kNoLimit) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;

  // The file and key path, for errors about several fields at once.
  std::string where(std::string_view key = {}) const;

 private:
  using KeySet = std::set<std::string, std::less<>>;

  HfConfig merged_with(const boost::json::object& defaults, bool over_nulls) const;

  HfConfig(std::shared_ptr<const boost::json::value> document, const boost::json::object* object,
           std::string path, std::shared_ptr<KeySet> read)
      : document_(std::move(document)),
        object_(object),
        path_(std::move(path)),
        read_(std::move(read)) {}

  const boost::json::value* find(std::string_view key) const;  // null when absent
  Result<const boost::json::value*> require(std::string_view key) const;
  tl::unexpected<Error> ill_typed(std::string_view key, std::string_view wanted,
                                  const boost::json::value& got) const;

  std::shared_ptr<const boost::json::value> document_;
  const boost::json::object* object_;  // inside *document_
  std::string path_;                   // "config.json" or "config.json: rope_scaling"
  std::shared_ptr<KeySet> read_;       // where() of the keys that were asked for
};

}  // namespace rudder::weights
