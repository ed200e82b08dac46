// Resolver: gives every name of a template its variable, and every filter and test its function.
// Jinja decides at load, not while it runs, which variable a name means: a block that assigns a
// name has a variable of its own from its first line on, a macro reads the variables that surround
// its definition, and what no block assigns is a global. This follows its rules, which templates
// rely on without knowing. Used by ChatTemplate, at load, after the parser.
//
// A function is the template itself, a macro, the body of a call block, the condition of a
// loop, or a recursive loop: each call of one has variables of its own (Activation). A frame is a
// block inside a function that brings variables with it: the function itself, a loop's turn, a set
// block, a filter block, a with block.
#pragma once

#include "rudder/base/result.h"
#include "rudder/text/jinja/parser.h"

namespace rudder::text::jinja {

// kInvalidArgument, with the line, for what the reference refuses at load.
Result<void> resolve(Template& parsed);

}  // namespace rudder::text::jinja
