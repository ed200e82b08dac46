// A schema that compiles lets through documents that it accepts, and is the same grammar when it is
// printed as EBNF and read again.
#include <boost/json.hpp>

#include "form_run.h"
#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/constraint/translate.h"
#include "schema_check.h"

namespace rudder::fuzz {
namespace {

using constraint::GrammarKind;
using constraint::GrammarSpec;

constexpr JsonLimits kDocumentLimits = {.max_depth = 1000};

void require_valid(const boost::json::value& schema, const std::string& document) {
  const auto value = parse_json(document, "document", kDocumentLimits);
  RUDDER_CHECK(value.has_value(), "{:?} is no JSON: {}", document, value.error().to_string());
  const std::string broken = broken_keyword(schema, *value);
  RUDDER_CHECK(broken.empty(), "{:?} breaks {}", document, broken);
}

}  // namespace

void fuzz_json_schema(std::string_view input) {
  if (find_invalid_utf8(input)) return;
  auto choices = choices_of(input);
  const GrammarSpec spec = {
      .kind = GrammarKind::kJsonSchema,
      .text = std::string(input),
      .space = choices() % 2 == 0 ? constraint::JsonSpace::kAny : constraint::JsonSpace::kCompact};
  const auto form = FormRun::compile(spec);
  if (!form) return;
  const auto schema = parse_json(input, "schema", kDocumentLimits);
  RUDDER_CHECK(schema.has_value(), "no JSON, and compiled");

  constraint::Fuel fuel(FormRun::kWork, FormRun::kBytes);
  const auto printed = constraint::to_ebnf(fuel, spec);
  const auto again = !printed ? tl::unexpected(printed.error())
                              : FormRun::compile({.kind = GrammarKind::kEbnf, .text = *printed});
  RUDDER_CHECK(again.has_value() || again.error().message.starts_with("is too complex") ||
                   again.error().message.find("large") != std::string::npos,
               "printed, it is refused: {}", again.error().to_string());
  for (int i = 0; i < 3; ++i) {
    const auto document = form->walk(choices);
    if (!document) continue;
    require_valid(*schema, *document);
    RUDDER_CHECK(form->accepts(*document) != false, "{:?} is refused byte by byte", *document);
    if (again)
      RUDDER_CHECK(again->accepts(*document) != false, "{:?} is refused, printed", *document);
  }
}

}  // namespace rudder::fuzz
