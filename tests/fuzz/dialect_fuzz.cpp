// The first byte says which dialects, the rest is an answer: its deltas joined are the same however
// it is cut, calls are numbered in order and named, and without calls no text is lost.
#include "require.h"
#include "rudder/base/utf8.h"
#include "rudder/dialect/test_support.h"

namespace rudder::fuzz {
namespace {

using dialect::Parsed;
using dialect::ParserSetup;

ParserSetup setup_from(unsigned char choice) {
  const auto tools = dialect::tool_dialects();
  const auto reasoning = dialect::reasoning_dialects();
  ParserSetup setup = dialect::setup_of("");
  constexpr size_t kChoices = 48;  // for dialects, so that a new one leaves the corpus what it is
  setup.calls = &tools[choice % kChoices % tools.size()];
  const size_t rest = choice / kChoices;
  if (rest > 0) setup.reasoning = &reasoning[(rest - 1) % reasoning.size()];
  setup.in_reasoning = rest > 0 && choice >= 128;
  setup.must_call = choice >= 240;
  return setup;
}

Parsed parse_cut(const ParserSetup& setup, std::string_view text, std::mt19937_64* choices) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t length = choices == nullptr ? 1 : 1 + (*choices)() % 24;
    pieces.emplace_back(text.substr(at, length));
    at += length;
  }
  return dialect::parse_pieces(setup, pieces);
}

std::string without_blanks(std::string text) {
  std::erase_if(text, [](char byte) { return byte == ' ' || byte == '\n'; });
  return text;
}

}  // namespace

void fuzz_dialect(std::string_view input) {
  if (input.empty() || input.size() > 6000) return;
  const CpuBound bound(10);
  auto choices = choices_of(input);
  const ParserSetup setup = setup_from(static_cast<unsigned char>(input[0]));
  const std::string text = to_valid_utf8(input.substr(1));
  const Parsed whole = dialect::parse_pieces(setup, {text});
  const std::string line = whole.line();
  for (const Parsed& cut : {parse_cut(setup, text, nullptr), parse_cut(setup, text, &choices)}) {
    RUDDER_CHECK(cut.line() == line, "whole {:?}, cut {:?}", line, cut.line());
  }
  for (const auto& call : whole.calls) {
    RUDDER_CHECK(!call.id.empty() && !call.name.empty(), "{}", line);
  }
  // Where a prompt ends with a mark, "all" belongs to it.
  const bool may_lose = (setup.calls->prompted && text.find("all") != std::string::npos) ||
                        dialect::is_harmony(setup.calls, nullptr);  // whose marks are no text
  if (whole.calls.empty() && setup.reasoning == nullptr && !may_lose) {
    RUDDER_CHECK(without_blanks(whole.content) == without_blanks(text), "{:?}", whole.content);
  }
}

}  // namespace rudder::fuzz
