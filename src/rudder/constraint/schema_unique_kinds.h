// The items of a list in which they differ (`uniqueItems`), sorted by what tells them apart.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "rudder/constraint/fuel.h"
#include "rudder/constraint/schema_document.h"
#include "rudder/constraint/schema_keywords.h"

namespace rudder::constraint {

// A schema of the document, and the target of the last reference that led to it.
struct Referred {
  const boost::json::object* schema = nullptr;  // null: not a schema of its own
  const boost::json::value* target = nullptr;
};

Referred referred(const SchemaDocument& document, const boost::json::value& schema);

// The values that a schema can have, where they are few by its types and bounds alone; each is held
// to its other keywords later.
std::optional<boost::json::array> few_values(const boost::json::object& schema);

class ItemKinds {
 public:
  ItemKinds(Fuel& fuel, const SchemaDocument& document) : fuel_(fuel), document_(document) {}

  // False where it is not clear how values of the schema are told apart, or the fuel is out.
  bool sort(const boost::json::value& schema);

  // Schemas with the mark kUnique at strings or numbers by which their values differ from all
  // others. No value is of two of them, or of one and of `others`.
  const boost::json::array& apart() const { return apart_; }
  // Schemas of what nothing tells apart: a list may have one of these values.
  const boost::json::array& others() const { return others_; }

 private:
  bool add(const boost::json::value& schema);
  bool may_split(const boost::json::object& schema, std::string_view key) const;
  bool add_options(const boost::json::object& schema, std::string_view key);
  void add_type(const boost::json::object& schema, const std::string& type);
  void take_listed();
  void add_scalars(const boost::json::array& schemas, const char* type, KeywordOf about);
  bool add_objects();
  bool exclude_each_other_all(const boost::json::array& schemas) const;

  Fuel& fuel_;
  const SchemaDocument& document_;
  boost::json::array apart_;
  boost::json::array others_;
  boost::json::array strings_;
  boost::json::array numbers_;
  boost::json::array objects_;
  boost::json::array listed_;  // values
  int depth_ = 0;
};

}  // namespace rudder::constraint
