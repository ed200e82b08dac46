// SchemaDocument: a JSON Schema in one normal form. Parsing checks every subschema: its keywords
// are known and their operands have the right types, so readers check nothing again. Where drafts
// have several spellings the normal form has one: a list in `items` becomes `prefixItems`, and
// `additionalItems` then becomes `items`; `exclusiveMinimum: true` beside a `minimum` becomes a
// number; `not`, `if` and the keywords of dependencies become kNoneOf and kConditions
// (schema_keywords.h). `definitions` stay in their place, because references point there. A
// translation owns it; it is immutable after parsing. One thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "rudder/base/result.h"

namespace rudder::constraint {

class SchemaDocument {
 public:
  // kInvalidArgument: not JSON, or a schema in it has a keyword that is not supported, or an
  // operand that is none (with its path in `where`).
  static Result<SchemaDocument> parse(std::string_view text);
  SchemaDocument(SchemaDocument&& other) noexcept;
  ~SchemaDocument();

  const boost::json::value& root() const;
  // The target of a `$ref`: "#" or "#/...", of this document as the client sent it. `path` is where
  // the reference is.
  Result<const boost::json::value*> resolve(std::string_view reference,
                                            const std::string& path) const;

 private:
  struct Data;
  SchemaDocument();
  // Checks a schema, brings it into normal form, and does the same to those in it.
  Result<void> normalise(boost::json::value& schema, const std::string& path);

  std::unique_ptr<Data> data_;  // does not move: the sets point into it
  std::unordered_set<const boost::json::value*> schemas_;
  // Those that had a list in `items`: a reference through it finds the items elsewhere now.
  std::unordered_set<const boost::json::value*> had_item_list_;
};

}  // namespace rudder::constraint
