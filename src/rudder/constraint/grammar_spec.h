// GrammarSpec: the form of output that a request asks for, as text; also the key of the cache of
// compiled grammars. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace rudder::constraint {

enum class GrammarKind : uint8_t {
  kJsonSchema,     // text: a JSON Schema; the output is JSON that it accepts
  kJsonObject,     // text: unused; the output is any JSON object
  kRegex,          // text: a regular expression that the whole output matches
  kChoice,         // text: a JSON array of strings; the output is one of them
  kEbnf,           // text: a grammar in EBNF whose first rule is `root`
  kStructuralTag,  // text: a structural tag (JSON): tag_builder.h
};

// Where JSON may have whitespace between its tokens.
enum class JsonSpace : uint8_t {
  kAny,      // none, one space, or a line break and an indent of up to 32
  kCompact,  // as json.dumps does: one space after `,` and `:`
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  JsonSpace space = JsonSpace::kAny;  // of kJsonSchema, kJsonObject and schemas in kStructuralTag

  bool operator==(const GrammarSpec&) const = default;
};

}  // namespace rudder::constraint
