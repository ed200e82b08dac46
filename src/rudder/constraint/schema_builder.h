// SchemaBuilder: walks over a schema and makes grammar nodes (json_schema.h). Its sources:
// schema_builder.cpp has the combinators, schema_conditions.cpp those that need complements,
// schema_scalars.cpp strings and numbers, schema_objects.cpp and schema_arrays.cpp the containers.
// One object for each translation, one thread.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/json_text.h"
#include "rudder/constraint/rule_set.h"
#include "rudder/constraint/schema_document.h"
#include "rudder/constraint/schema_values.h"
#include "rudder/constraint/string_form.h"
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {

class SchemaBuilder {
 public:
  using Node = RuleSet::Node;

  SchemaBuilder(RuleSet& rules, JsonSpace space, const SchemaDocument& document)
      : rules_(rules),
        text_(rules, space),
        document_(document),
        values_(rules.fuel(), document),
        joined_bytes_(rules.fuel()) {}

  // `path` is where the schema stands in the document (for merged ones: where they meet).
  Result<Node> build(const boost::json::value& schema, const std::string& path);

 private:
  tl::unexpected<Error> bad(std::string message, std::string where) const;

  // Combinators: $ref, allOf, anyOf, oneOf.
  Result<Node> build_object_schema(const boost::json::object& schema, const std::string& path);
  Result<Node> build_reference(std::string_view reference, const std::string& path);
  Result<Node> build_together(const boost::json::object& schema, const std::string& path);
  Result<Node> join(const boost::json::object& schema, const std::string& path);
  // Schemas that bind together: what has become one, and lists of alternatives.
  struct Together {
    boost::json::value whole;
    std::vector<boost::json::array> lists;
  };
  Result<void> add_part(Together& together, boost::json::value part, const std::string& path);
  static void take_alternatives(Together& together, boost::json::value& part);
  bool holds(const boost::json::value& whole, const boost::json::value& way);
  Result<bool> narrow(Together& together, const std::string& path);
  Result<void> choose(Together together, const std::string& path, std::vector<Node>& nodes);
  Result<void> close_part(boost::json::value& part, const std::string& path);
  bool exclude_all(const boost::json::array& options);
  boost::json::array options_of_objects(const boost::json::array& options) const;
  // At the later of the two options.
  tl::unexpected<Error> overlapping(size_t one, size_t other, const std::string& path) const;
  tl::unexpected<Error> unclear_unevaluated(const std::string& path) const;
  Result<boost::json::array> values_of_option(const boost::json::array& options, size_t index,
                                              const boost::json::array& values,
                                              const std::string& path);
  Result<Node> build_exactly_one(const boost::json::object& schema, const std::string& path);
  Result<Node> build_conditions(const boost::json::object& schema, const std::string& path);
  Result<Node> build_options(const boost::json::object& schema, std::string_view keyword,
                             const std::string& path);

  Result<Node> build_all_of(const std::vector<const boost::json::value*>& parts,
                            const std::string& path);

  // Values.
  Result<Node> build_listed(const boost::json::object& schema, const std::string& path);
  Result<Node> build_types(const boost::json::object& schema, const std::string& path);
  Result<Node> build_type(std::string_view type, const boost::json::object& schema,
                          const std::string& path);
  // `refused`: values that it must not be.
  Result<Node> build_string(const boost::json::object& schema, const boost::json::array& refused,
                            const std::string& path);
  Result<Node> strings(const StringForm& form, const std::string& path);
  // `type`: "number", or one of its parts.
  Result<Node> build_number(std::string_view type, const boost::json::object& schema,
                            const boost::json::array& refused, const std::string& path);

  // Objects and arrays.
  struct Property {
    std::string name;
    Node node = 0;  // key, colon and value
    bool required = false;
  };
  struct ObjectShape;
  Result<Node> build_object(const boost::json::object& schema, const std::string& path);
  Result<std::vector<Property>> build_properties(const boost::json::object& schema,
                                                 const std::string& path);
  // Key, colon and value of a property that is not named; nothing() where there may be none.
  Result<Node> build_additional(const boost::json::object& schema,
                                const std::vector<Property>& properties, bool unique_keys,
                                const std::string& path);
  Result<Node> unique_key(Node key, const std::string& path);
  Result<Node> build_field(const boost::json::object& schema, std::string_view name,
                           const std::string& path);
  Result<Node> build_key(const boost::json::object& schema, uint32_t set,
                         const std::vector<std::string>& patterns,
                         const std::vector<Property>& properties, const std::string& path);
  static const boost::json::value* additional_of(const boost::json::object& schema);
  Result<Node> chain(const std::vector<Property>& properties, Node additional, int64_t min,
                     int64_t max, const std::string& path);
  Result<Node> build_containing(const boost::json::object& schema, const std::string& path);
  // Items of a list that differ: those that a string or number tells apart, and the others, of
  // which a list may have one; nothing() where there are none.
  struct UniqueItems {
    Node apart = 0;
    Node others = 0;
    int32_t most = kManyTexts;  // of those apart, at least
    bool is_open = false;       // they are being built, and `most` was asked for
  };
  Result<UniqueItems> build_unique_items(const boost::json::object& schema,
                                         const std::string& path);
  Node build_unique_list(const UniqueItems& unique, const boost::json::object& schema);
  Result<Node> build_unique_values(const boost::json::object& schema, const std::string& path);
  Result<Node> one_terminal(Node node, const std::string& path);
  Result<Node> unique_string(Node node, const std::string& path);
  std::optional<std::string> pattern_of(Node node, int depth);
  Result<Node> unique_number(Node node);
  bool are_apart_by_index(const boost::json::object& schema);
  Result<Node> build_array(const boost::json::object& schema, const std::string& path);

  // What schemas that bind together came to: a rule where it is needed again, or by itself.
  struct Joined {
    std::optional<Node> node;  // nothing while it is built
    int32_t rule = -1;
  };

  RuleSet& rules_;
  JsonText text_;
  const SchemaDocument& document_;
  SchemaValues values_;
  std::unordered_map<const boost::json::value*, int32_t> references_;  // rules of targets
  std::unordered_map<std::string, Joined> joined_;                     // by what binds together
  Held joined_bytes_;
  std::unordered_map<std::string, Node> strings_;  // by what the form says
  std::unordered_map<const boost::json::value*, UniqueItems> unique_references_;  // with marks
  int32_t unique_texts_ = 0;    // the fewest that what has kUnique, in an object, can be
  bool has_lost_mark_ = false;  // something with kUnique came out as something else
  int depth_ = 0;
};

}  // namespace rudder::constraint
