// Parser: tokens to the tree, by recursive descent with a bounded depth. Used by ChatTemplate, at
// load.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/text/jinja/ast.h"

namespace rudder::text::jinja {

inline constexpr int kMaxParseDepth = 64;  // blocks and brackets inside one another

struct Template {
  Block body;
  std::set<std::string, std::less<>> names;  // every name that is read
  std::set<std::string, std::less<>> words;  // every string that is written, every attribute's name
  bool loops_over_content = false;           // some loop runs over a message's content
  Frame frame;                               // by the resolver, as the next
  int slots = 0;
};

// kUnsupported names a construct outside the subset; kInvalidArgument is a syntax error. `where` is
// the line. The variables, filters and tests of the tree are not resolved yet.
Result<Template> parse(std::string_view source);

}  // namespace rudder::text::jinja
