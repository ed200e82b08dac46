// The tools and thoughts of a request: what the readers of all APIs make of their fields, and
// chat's own fields for them. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/dialect/call_format.h"
#include "rudder/dialect/dialect.h"
#include "rudder/server/model.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/tool_choice.h"

namespace rudder::server {

inline constexpr size_t kMaxTools = 1024;  // of a request

// Where the client's body has a function.
struct ToolPath {
  std::string fields;  // its name and so on
  std::string schema;  // of its arguments
};

struct ToolFields {
  const boost::json::array* shown = nullptr;  // what the template is given; null: no tools
  std::shared_ptr<const boost::json::array> own_shown;    // that, where it is not the body's
  std::shared_ptr<const boost::json::array> own_offered;  // all tools, likewise
  ToolChoice choice;
  bool parallel = true;
  bool include_reasoning = true;  // thoughts are sent, beside the text
  dialect::ParserSetup parser;
  std::vector<dialect::CallableTool> callable;  // points into the list that was offered
  std::vector<std::string> schema_paths;        // of each

  // How the answer to this prompt is to be parsed; nothing where it is all text.
  std::optional<dialect::ParserSetup> parser_after(std::string_view prompt) const;
  bool is_forced() const { return choice.mode == ToolChoice::Mode::kRequired; }
  // Arguments of calls of this tool satisfy its schema.
  bool has_schema_enforced(const dialect::CallableTool& tool) const;
  // The form of the answer: calls where a call must come; where one may come, any text, and calls
  // of the allowed tools, whose arguments satisfy the schemas of strict tools. Nothing where the
  // answer is free. `setup` comes from parser_after.
  std::optional<constraint::GrammarSpec> grammar(const dialect::ParserSetup& setup,
                                                 const text::Tokenizer& tokenizer) const;
  // Calls, or `content` (a format of a structural tag) instead of them.
  constraint::GrammarSpec grammar_beside(const boost::json::object& content,
                                         const dialect::ParserSetup& setup,
                                         const text::Tokenizer& tokenizer) const;
  // The error of the first tool whose schema no grammar can enforce, with its path.
  std::optional<Error> schema_error() const;

 private:
  std::vector<dialect::CallableTool> allowed() const;
};

// Marks of a dialect that are special tokens here.
dialect::FindSpecial special_marks(const text::Tokenizer& tokenizer);

// Names of tools that may be called and are not shown to the template: the conversation shows them.
using DeferredTools = std::set<std::string, std::less<>>;

// The steps of a reader. Errors stay in `reader`.
// `include_reasoning`, `separate_reasoning`, `parallel_tool_calls`.
ToolFields begin_tool_fields(FieldReader& reader, const ModelDialect& dialect);
// One more function, an item's `function` in chat's form.
void offer_function(FieldReader& reader, const boost::json::object& function, ToolPath path,
                    ToolFields* fields);
// Whether one that the conversation brings along could be: such that could not are left out.
bool can_be_offered(const boost::json::object& function);
// The same of all of a list in chat's form.
void offer_functions(FieldReader& reader, std::shared_ptr<const boost::json::array> list,
                     const std::vector<ToolPath>& paths, ToolFields* fields);
// When the choice is known. Tools that may not be called are not shown to the model either.
// `offered`: the list, or null.
void settle_tool_fields(FieldReader& reader, const boost::json::array* offered,
                        const ModelDialect& dialect, const DeferredTools& deferred,
                        ToolFields* fields);

// Chat's `tools` and `tool_choice`.
ToolFields read_tool_fields(FieldReader& reader, const ModelDialect& dialect);

// The dialect that --tool-call-parser and --reasoning-parser name; where they are empty, the one
// that the chat template shows. kInvalidArgument for an unknown name.
Result<ModelDialect> find_dialect(const ServerModel& model, std::string_view tool_call_parser,
                                  std::string_view reasoning_parser);

}  // namespace rudder::server
