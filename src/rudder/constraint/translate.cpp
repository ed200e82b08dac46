#include "rudder/constraint/translate.h"

#include <boost/json.hpp>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/constraint/ebnf_parser.h"
#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/json_text.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/rule_set.h"
#include "rudder/constraint/tag_builder.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr size_t kMaxChoices = 10'000;

Result<RuleSet::Node> build_choice(RuleSet& rules, const std::string& text) {
  RUDDER_TRY(const json::value value, parse_json(text, "the list of choices"));
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty() || list->size() > kMaxChoices) {
    return fail(ErrorCode::kInvalidArgument, "must be a list of 1 to 10000 strings");
  }
  std::vector<RuleSet::Node> nodes;
  for (size_t i = 0; i < list->size(); ++i) {
    const json::string* choice = (*list)[i].if_string();
    if (choice == nullptr || choice->empty()) {
      return fail(ErrorCode::kInvalidArgument, "must be a string that is not empty",
                  "[" + std::to_string(i) + "]");
    }
    nodes.push_back(rules.literal(*choice));
  }
  return rules.choice(nodes);
}

}  // namespace

Result<RuleSet::Node> translate(RuleSet& rules, const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarKind::kJsonSchema:
      return build_json_schema(rules, spec.text, spec.space);
    case GrammarKind::kJsonObject:
      return JsonText(rules, spec.space).object();
    case GrammarKind::kRegex:
      return build_pattern(rules, spec.text, PatternUse::kWholeText);
    case GrammarKind::kChoice:
      return build_choice(rules, spec.text);
    case GrammarKind::kEbnf:
      return build_ebnf(rules, spec.text);
    case GrammarKind::kStructuralTag:
      return build_structural_tag(rules, spec.text, spec.space);
  }
  return fail(ErrorCode::kInternal, "not a kind of form");
}

Result<std::string> to_ebnf(const GrammarSpec& spec) {
  Fuel fuel;
  return to_ebnf(fuel, spec);
}

Result<std::string> to_ebnf(Fuel& fuel, const GrammarSpec& spec) {
  if (spec.kind == GrammarKind::kEbnf) return spec.text;
  RuleSet rules(fuel);
  RUDDER_TRY(const RuleSet::Node start, translate(rules, spec));
  return rules.to_ebnf(start);
}

}  // namespace rudder::constraint
