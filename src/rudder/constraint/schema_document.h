// SchemaDocument: a JSON Schema in one normal form. Parsing checks every subschema: its keywords
// are known and their operands have the right types, so readers check nothing again. Where drafts
// have several spellings the normal form has one: a list in `items` becomes `prefixItems`, and
// `additionalItems` then becomes `items`; `exclusiveMinimum: true` beside a `minimum` becomes a
// number; `not`, `if` and the keywords of dependencies become kNoneOf and kConditions, `pattern`
// becomes kPatterns (schema_keywords.h); references by an anchor or by the document's own `$id`
// become pointers. `definitions` stay where they are, because references point there. A translation
// owns it; it is immutable after parsing. One thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"

namespace rudder::constraint {

class SchemaDocument {
 public:
  // kInvalidArgument: not JSON, or a schema in it has a keyword that is not supported, or an
  // operand that is none (with its path in `where`).
  // Or the fuel, which it does not keep, is out.
  static Result<SchemaDocument> parse(Fuel& fuel, std::string_view text);
  SchemaDocument(SchemaDocument&& other) noexcept;
  ~SchemaDocument();

  const boost::json::value& root() const;
  // Paths of names that are no keywords of any draft known here, and of formats that are not
  // enforced: at most kMaxIgnored of them.
  static constexpr size_t kMaxIgnored = 16;
  const std::vector<std::string>& ignored() const { return ignored_; }
  // The target of a `$ref`: "#" or "#/...", of this document as the client sent it. `path` is where
  // the reference is.
  Result<const boost::json::value*> resolve(std::string_view reference,
                                            const std::string& path) const;

 private:
  struct Data;
  SchemaDocument();
  // Checks a schema, brings it into normal form, and does the same to those in it.
  Result<void> normalise(Fuel& fuel, boost::json::value& schema, const std::string& path);
  Result<void> normalise_inside(Fuel& fuel, boost::json::object& object, bool moved,
                                const std::string& path);
  // What is under a name that is no keyword: schemas in it are those that references point to.
  Result<void> normalise_targets(Fuel& fuel, boost::json::value& value, const std::string& path);
  void note_ignored(const boost::json::object& schema, const std::string& path);

  std::unique_ptr<Data> data_;  // does not move: the sets point into it
  std::unordered_set<const boost::json::value*> schemas_;
  // Those that had a list in `items`: a reference through it finds the items elsewhere now.
  std::unordered_set<const boost::json::value*> had_item_list_;
  std::vector<std::string> ignored_;
};

}  // namespace rudder::constraint
