// SchemaDocument: a JSON Schema as a client sent it, whose every subschema has been looked at: its
// keywords are known and their operands have the right types, so that who reads it need not ask
// again. Immutable after parse; one translation, one thread.
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
  // The target of a `$ref`: "#" or "#/...", of this document. `path` is where the reference is.
  Result<const boost::json::value*> resolve(std::string_view reference,
                                            const std::string& path) const;

 private:
  struct Data;
  SchemaDocument();
  Result<void> check(const boost::json::value& schema, const std::string& path);

  std::unique_ptr<Data> data_;  // does not move: schemas_ points into it
  std::unordered_set<const boost::json::value*> schemas_;
};

}  // namespace rudder::constraint
