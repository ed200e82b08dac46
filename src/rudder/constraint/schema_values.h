// SchemaValues: whether a schema accepts a value that is known: one that a schema lists, for the
// keywords beside the list. One object a translation, one thread.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/pattern_dfa.h"
#include "rudder/constraint/schema_document.h"

namespace rudder::constraint {

enum class Fit : uint8_t { kNo, kUnknown, kYes };

class SchemaValues {
 public:
  SchemaValues(Fuel& fuel, const SchemaDocument& document) : fuel_(fuel), document_(document) {}

  // kUnknown where dialects differ, or the schema has a keyword that is not decided here.
  Fit fit(const boost::json::value& schema, const boost::json::value& value) {
    return fit(schema, value, 0);
  }
  // The keyword at which the last kUnknown was met.
  const std::string& unclear() const { return unclear_; }

  // Whether the expression has a match in the text.
  Fit matches(const std::string& pattern, std::string_view text);

 private:
  Fit fit(const boost::json::value& schema, const boost::json::value& value, int depth);
  Fit fit_keyword(std::string_view key, const boost::json::value& operand,
                  const boost::json::object& schema, const boost::json::value& value, int depth);
  Fit fit_parts(std::string_view key, const boost::json::array& parts,
                const boost::json::value& value, int depth);
  Fit fit_string(std::string_view key, const boost::json::value& operand, std::string_view text);
  static Fit fit_number(std::string_view key, const boost::json::value& operand,
                        const boost::json::value& value);
  Fit fit_object(std::string_view key, const boost::json::value& operand,
                 const boost::json::object& schema, const boost::json::object& value, int depth);
  Fit fit_array(std::string_view key, const boost::json::value& operand,
                const boost::json::object& schema, const boost::json::array& value, int depth);

  Fuel& fuel_;
  const SchemaDocument& document_;
  std::unordered_map<std::string, ByteAutomaton>
      automata_;  // by a mark of how it is read, and text
  std::string unclear_;
};

}  // namespace rudder::constraint
