// FieldReader: reads typed fields out of a JSON object. It keeps the first error, with the field's
// JSON path, and ignores later reads; so a parser reads all fields in a row and checks for an error
// once. null counts as absent. It can list the fields that nobody read. One object for each
// request, on one thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::engine {
struct RequestLimits;
}  // namespace rudder::engine

namespace rudder::server {

// Of a name, or of a choice among a few, as FieldReader::string() bounds it.
inline constexpr size_t kMaxNameBytes = 1024;

class FieldReader {
 public:
  // `path` is put in front of names: "" for the body, "stream_options" for an object inside it.
  FieldReader(const boost::json::object& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  // Each leaves the output alone when the field is absent. A number with a zero fraction is an
  // integer ("3.0"), as in the reference servers; a bool is never a number.
  void boolean(std::string_view name, bool* out);
  // `told_max`: what the error says is the largest, where something else narrows it.
  void integer(std::string_view name, int64_t min, int64_t max, std::optional<int64_t>* out,
               std::optional<int64_t> told_max = std::nullopt);
  void int32(std::string_view name, int64_t min, int64_t max, int32_t* out,
             std::optional<int64_t> told_max = std::nullopt);
  void real(std::string_view name, float* out);  // finite, and fits a float
  void string(std::string_view name, size_t max_bytes, std::string* out);
  void string(std::string_view name, size_t max_bytes, std::optional<std::string>* out);
  // A list of token ids. `max_items` bounds it.
  void token_ids(std::string_view name, size_t max_items, std::vector<int32_t>* out);

  // The field as it is, or null when absent. Counts as asked for.
  const boost::json::value* raw(std::string_view name);
  const boost::json::object* object(std::string_view name);
  const boost::json::array* array(std::string_view name);

  // Accepted and without effect, by design: not listed as ignored.
  void skip(std::string_view name) { raw(name); }
  // Present, and something else than null, false, 0, or empty: refused as not supported.
  void refuse(std::string_view name, std::string_view why);

  // Of the server, which narrow ranges; null: nothing does.
  void show_limits(const engine::RequestLimits* limits) { limits_ = limits; }
  const engine::RequestLimits* limits() const { return limits_; }

  // The message follows the path: "top_k must be ...".
  void error(ErrorCode code, std::string_view message, std::string_view name);
  // An error found elsewhere, its path complete.
  void adopt(const Error& error);
  bool ok() const { return !error_; }
  const Error& error() const { return *error_; }
  Result<void> result() const;

  // An object inside this one has been read: its first error and what it ignored are this one's.
  void adopt(const FieldReader& inner);
  // What is inside of a field, at this path, has no effect.
  void ignore(std::string_view path);

  std::string path_of(std::string_view name) const;
  // Paths of fields that nobody read, at most 16 of them, of visible ASCII.
  std::vector<std::string> ignored() const;

 private:
  std::optional<int64_t> read_integer(std::string_view name, int64_t min, int64_t max,
                                      int64_t told_max);

  const boost::json::object& object_;
  const std::string path_;
  std::vector<std::string_view> asked_;
  std::vector<std::string> ignored_inside_;
  std::optional<Error> error_;
  const engine::RequestLimits* limits_ = nullptr;
};

// For readers of their own: errors in the same form.
tl::unexpected<Error> field_error(ErrorCode code, std::string_view message, std::string path);
tl::unexpected<Error> invalid_field(std::string_view message, std::string path);

// A whole number out of a JSON number of any kind, when it is one.
std::optional<int64_t> whole_number(const boost::json::value& value);
std::string_view json_type_name(const boost::json::value& value);

// One list of token ids, whose path is `path`.
Result<std::vector<int32_t>> parse_token_ids(const boost::json::array& array,
                                             const std::string& path);

}  // namespace rudder::server
