// Builds the grammar that constrains the answer of a request: the form of its text, the form of its
// calls, or an alternative of both. Runs on the tokenise pool.
#pragma once

#include <optional>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/dialect/dialect.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/structured_output.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

// What an output with a form cannot be asked for beside it; errors go to `reader`.
void check_form(FieldReader& reader, bool ignore_eos, const ToolFields& tools,
                const StructuredOutput& structured);

// Nothing where the answer may be any text. `setup` is how the answer will be parsed. An Error has
// the path of the field that is at fault.
Result<std::optional<constraint::GrammarSpec>> answer_grammar(const StructuredOutput& structured,
                                                              const ToolFields& tools,
                                                              const dialect::ParserSetup& setup,
                                                              const text::Tokenizer& tokenizer);

// An error of compiling it, with the path of the field that is at fault.
Error blame_grammar(const StructuredOutput& structured, const ToolFields& tools, Error error);

}  // namespace rudder::server
