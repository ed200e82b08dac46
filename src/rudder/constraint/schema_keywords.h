// The table of JSON Schema keywords: each is enforced, an annotation without effect on validity, or
// refused by its name. A keyword that is not in the table is refused as well.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::constraint {

// The type whose values a keyword is about: with no `type` beside it, that type is meant.
enum class KeywordOf : uint8_t { kAnything, kString, kNumber, kObject, kArray };

struct KeywordInfo {
  bool annotation = false;
  KeywordOf of = KeywordOf::kAnything;
};

// What is known of an enforced keyword or an annotation; null for the rest.
const KeywordInfo* keyword_info(std::string_view name);

// Every keyword of one schema is known, and its operand has the right type. Subschemas are not
// looked into. `path` is where the schema is, for Error.where.
Result<void> check_keywords(const boost::json::object& schema, const std::string& path);

// ".properties.name", "[3]": how paths are written.
std::string path_to(const std::string& path, std::string_view key);
std::string path_to(const std::string& path, size_t index);

}  // namespace rudder::constraint
