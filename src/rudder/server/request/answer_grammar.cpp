#include "rudder/server/request/answer_grammar.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

namespace rudder::server {

void check_form(FieldReader& reader, bool ignore_eos, const ToolFields& tools,
                const StructuredOutput& structured) {
  if (!structured.spec) return;
  if (ignore_eos) {
    reader.error(ErrorCode::kInvalidArgument,
                 "is not allowed together with a form of the output, which ends it", "ignore_eos");
  }
  // The API's own format is about what the answer says, and a call that must come says nothing; the
  // other names of a form are about all of the output.
  if (tools.is_forced() && !structured.is_of_text) {
    reader.error(ErrorCode::kInvalidArgument,
                 fmt::format("must be none or auto beside {}: a call that must come has a form of "
                             "its own",
                             structured.path),
                 "tool_choice");
  }
}

Result<std::optional<constraint::GrammarSpec>> answer_grammar(const StructuredOutput& structured,
                                                              const ToolFields& tools,
                                                              const dialect::ParserSetup& setup,
                                                              const text::Tokenizer& tokenizer) {
  if (!structured.spec || tools.is_forced()) return tools.grammar(setup, tokenizer);
  if (tools.choice.mode == ToolChoice::Mode::kNone) {
    Result<constraint::GrammarSpec> spec = structured.after_thoughts(setup, tokenizer);
    if (!spec) return tl::unexpected<Error>(structured.blame(spec.error()));
    return std::optional(std::move(*spec));
  }
  const Result<boost::json::object> content = structured.content();
  if (!content) return tl::unexpected<Error>(structured.blame(content.error()));
  return std::optional(tools.grammar_beside(*content, setup, tokenizer));
}

Error blame_grammar(const StructuredOutput& structured, const ToolFields& tools, Error error) {
  if (std::optional<Error> at_tool = tools.schema_error()) return std::move(*at_tool);
  if (structured.spec && !tools.is_forced()) return structured.blame(std::move(error));
  error.message = "tool_choice " + error.message;
  error.where = "tool_choice";
  return error;
}

}  // namespace rudder::server
