// SchemaReferences: makes the `$ref`s of a schema document plain pointers before the document is
// brought into its normal form. One object a document; one thread.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/fuel.h"

namespace rudder::constraint {

// A mark in objects that references point to: they are schemas wherever they stand. Whoever meets
// it takes it out.
constexpr std::string_view kTarget = "#target";

// The keys of a pointer "#/a/b~1c/0", decoded; nothing when a '%' has no two digits behind it.
std::optional<std::vector<std::string>> pointer_keys(std::string_view pointer);

class SchemaReferences {
 public:
  SchemaReferences(Fuel& fuel, boost::json::value& root) : fuel_(fuel), held_(fuel), root_(root) {}

  // References by anchor, by `$id` of the document or of a schema in it are pointers then; marks
  // their targets that lie where no keyword has a schema. A schema with an `$id` of
  // its own is a document in the document: what it refers to is looked up in it first. References
  // to other documents stay. An Error when the fuel is out.
  Result<void> make_pointers();

 private:
  // A document, or one that lies in it.
  struct Resource {
    std::string pointer;
    std::string name;  // its URI without a fragment; empty where it has none
  };

  void name(const std::string& text, const std::string& pointer);
  void find_names(const boost::json::value& value, const std::string& pointer,
                  const Resource& around);
  // Collects the pointers.
  void rewrite(boost::json::value& value, const Resource* around);
  std::optional<std::string> pointer_of(std::string_view reference, const Resource& around);
  std::optional<std::string> known(const std::string& name) const;
  const boost::json::value* find(std::string_view pointer);
  void mark(std::string_view pointer);

  Fuel& fuel_;
  Held held_;
  boost::json::value& root_;
  std::string root_name_;                                  // of the document, without a fragment
  std::unordered_map<std::string, std::string> pointers_;  // by anchor or `$id`
  std::unordered_map<const boost::json::value*, Resource> resources_;  // that have a name
  std::vector<std::string> targets_;
};

}  // namespace rudder::constraint
