// A structural tag that compiles lets through texts that it takes byte by byte, and that it takes
// when its schemas have been replaced by grammars.
#include "form_run.h"
#include "rudder/base/utf8.h"
#include "rudder/constraint/structural_tag.h"

namespace rudder::fuzz {

using constraint::GrammarKind;

void fuzz_structural_tag(std::string_view input) {
  if (find_invalid_utf8(input)) return;
  auto choices = choices_of(input);
  const constraint::GrammarSpec spec = {GrammarKind::kStructuralTag, std::string(input)};
  const auto form = FormRun::compile(spec);
  constraint::Fuel fuel;
  const auto opened = constraint::open_structural_tag(fuel, spec);
  if (!opened)
    require_error(opened.error(), {ErrorCode::kInvalidArgument, ErrorCode::kUnsupported});
  if (!form) return;
  const bool names_tokens = input.find("oken") != std::string_view::npos;
  const auto again = !opened ? tl::unexpected(opened.error())
                             : FormRun::compile({GrammarKind::kStructuralTag, *opened});
  for (int i = 0; i < 3; ++i) {
    const auto text = form->walk(choices, names_tokens);
    if (!text || names_tokens) continue;
    RUDDER_CHECK(form->accepts(*text) != false, "{:?} is refused byte by byte", *text);
    if (again) RUDDER_CHECK(again->accepts(*text) != false, "{:?} is refused, opened", *text);
  }
}

}  // namespace rudder::fuzz
