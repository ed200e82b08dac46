// The template's tokens, with Jinja2's whitespace control already applied (trim_blocks and
// lstrip_blocks on, as Hugging Face sets them). Used by the parser, at load.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::text::jinja {

struct Token {
  enum class Kind {
    kText,       // template text between tags
    kOutput,     // {{
    kOutputEnd,  // }}
    kBlock,      // {%
    kBlockEnd,   // %}
    kName,
    kString,  // its value
    kInteger,
    kFloat,
    kOperator,  // its spelling
    kEnd,
  } kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// kInvalidArgument with the line for what is not a template.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace rudder::text::jinja
