// A grammar that compiles lets through texts that it takes byte by byte, and is the same grammar
// when it is printed and read again.
#include "form_run.h"
#include "rudder/base/utf8.h"
#include "rudder/constraint/translate.h"

namespace rudder::fuzz {

using constraint::GrammarKind;

void fuzz_ebnf(std::string_view input) {
  if (find_invalid_utf8(input)) return;
  auto choices = choices_of(input);
  const constraint::GrammarSpec spec = {GrammarKind::kEbnf, std::string(input)};
  const auto form = FormRun::compile(spec);
  if (!form) return;
  // Tokens that are named by their ids need have no bytes, nor be in the vocabulary.
  const bool names_tokens = input.find("Token") != std::string_view::npos;
  constraint::Fuel fuel(FormRun::kWork, FormRun::kBytes);
  const auto printed = constraint::to_ebnf(fuel, spec);
  const auto again =
      !printed ? tl::unexpected(printed.error()) : FormRun::compile({GrammarKind::kEbnf, *printed});
  for (int i = 0; i < 3; ++i) {
    const auto text = form->walk(choices, names_tokens);
    if (!text || names_tokens) continue;
    RUDDER_CHECK(form->accepts(*text) != false, "{:?} is refused byte by byte", *text);
    if (again) RUDDER_CHECK(again->accepts(*text) != false, "{:?} is refused, printed", *text);
  }
}

}  // namespace rudder::fuzz
