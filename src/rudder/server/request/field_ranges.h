// The ranges of the fields of generation requests, in one table: the parser applies them,
// /openapi.json and docs/api.md print them, and a test checks every line. It covers single values;
// engine/validate.cpp checks pairs of fields. Immutable; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "rudder/engine/request.h"

namespace rudder::server {

enum class FieldOf : uint8_t { kBoth, kChat, kCompletions };

// What of the server narrows a field's range from above.
enum class RangeLimit : uint8_t {
  kNone,
  kContext,   // the model's context, less one token: prompt and output have one at least
  kChoices,   // RequestLimits::max_choices
  kLogprobs,  // RequestLimits::max_logprobs, or the vocabulary
};

// The path of a field in an object is "object.field"; of every value of an object, "object.*".
struct IntegerField {
  std::string_view path;
  FieldOf of = FieldOf::kBoth;
  int64_t min = 0;
  int64_t max = 0;
  RangeLimit limit = RangeLimit::kNone;
  std::string_view text;  // for people
};

struct RealField {
  std::string_view path;
  FieldOf of = FieldOf::kBoth;
  double min = 0;
  double max = 0;
  bool open_min = false;  // `min` itself is refused
  std::string_view text;

  bool contains(double value) const {  // NaN is not
    return value <= max && (open_min ? value > min : value >= min);
  }
};

// Strings in bytes, lists and objects in entries.
struct SizedField {
  std::string_view path;
  FieldOf of = FieldOf::kBoth;
  int64_t max = 0;
  std::string_view text;
};

std::span<const IntegerField> integer_fields();
std::span<const RealField> real_fields();
std::span<const SizedField> sized_fields();

// The field of that path, which is in the table.
const IntegerField& integer_field(std::string_view path);
const RealField& real_field(std::string_view path);
size_t size_limit(std::string_view path);  // of a sized field

// The largest value that this server takes.
int64_t max_of(const IntegerField& field, const engine::RequestLimits& limits);

}  // namespace rudder::server
