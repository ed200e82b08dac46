// The tools of POST /v1/responses as functions. A model calls functions with JSON alone; tools in
// namespaces and tools that take a text are functions to it, and their calls are told in the form
// that the client knows. Tools that the server would have to run are left out.
// Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/server/openai/asking_items.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/history.h"
#include "rudder/server/request/tool_fields.h"

namespace rudder::server {

struct ToolForm {
  std::string name;
  std::string tool_namespace;  // "" where it is in none
  bool is_custom = false;      // it takes a text
};

struct ToolForms {
  // By the function's name; a function that is in no namespace is not among them.
  std::map<std::string, ToolForm, std::less<>> by_function;
  // What shows the tools that an item of the conversation brings along, by the item's path.
  std::map<std::string, std::string, std::less<>> shown_at;

  const ToolForm* find(std::string_view function) const;
};

// The name of the function that stands for a tool.
std::string function_name(std::string_view tool_namespace, std::string_view name);
// Arguments of a function that stands for a custom tool, as JSON, and the text in them; of
// arguments that were cut off, what there is of it.
std::string custom_arguments(std::string_view input);
std::string custom_input(std::string_view arguments);

// Of a call and its result; items of some kinds have an "id" alone.
std::string_view call_id_of(const boost::json::object& item);

// `tools` and `tool_choice`; the first fault is `reader`'s. `history` is told of tools that are
// left out, which cannot be chosen; `forms` of those that are no plain function. Items of the
// conversation may bring further ones along (`additional_tools`, results of a search for tools).
ToolFields read_response_tools(FieldReader& reader, const ModelDialect& dialect,
                               const std::vector<AskingItem>& items, History& history,
                               ToolForms& forms);

}  // namespace rudder::server
