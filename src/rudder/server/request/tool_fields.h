// Reads the fields of a chat request about tools and thoughts: `tools`, `tool_choice`,
// `parallel_tool_calls`, `include_reasoning`, `separate_reasoning`. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
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

struct ToolFields {
  const boost::json::array* shown = nullptr;  // what the template is given; null: no tools
  ToolChoice choice;
  bool parallel = true;
  bool include_reasoning = true;  // thoughts are sent, beside the text
  dialect::ParserSetup parser;
  std::vector<dialect::CallableTool> callable;  // as `tools` has them; points into the body

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

// Errors stay in `reader`. Tools that may not be called are not shown to the model either.
ToolFields read_tool_fields(FieldReader& reader, const ModelDialect& dialect);

// The dialect that --tool-call-parser and --reasoning-parser name; where they are empty, the one
// that the chat template shows. kInvalidArgument for an unknown name.
Result<ModelDialect> find_dialect(const ServerModel& model, std::string_view tool_call_parser,
                                  std::string_view reasoning_parser);

}  // namespace rudder::server
