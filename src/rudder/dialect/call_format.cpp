#include "rudder/dialect/call_format.h"

#include <boost/json.hpp>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/dialect/harmony.h"
#include "rudder/dialect/plain_text.h"

namespace rudder::dialect {

namespace json = boost::json;

namespace {

json::object sequence(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

json::object text(std::string_view value) {
  return {{"type", "const_string"}, {"value", json::string_view(value)}};
}

class FormatWriter {
 public:
  // `forces`: a call must come, and every tool's schema binds.
  FormatWriter(const ToolDialect& dialect, const FindSpecial& find_special, bool forces)
      : dialect_(dialect), find_special_(find_special), forces_(forces) {}

  // Text up to a mark, and the mark.
  json::object until(std::string_view begin, std::string_view end) const {
    const auto side = [&](std::string_view value) -> json::value {
      if (!value.empty() && find_special_(value)) return mark(value);
      return json::string_view(value);
    };
    return {{"type", "tag"},
            {"begin", side(begin)},
            {"content", {{"type", "any_text"}}},
            {"end", side(end)}};
  }

  json::object calls(const std::vector<CallableTool>& tools, bool parallel) const {
    if (dialect_.list) return list(tools, parallel, true);
    if (dialect_.form == CallForm::kHeaded) return headed(tools, parallel, !dialect_.prompted);
    json::value one = any_call(tools, true);
    if (!parallel) return sequence({std::move(one)});
    // The separator of calls may also follow the last one: the parser drops it, and the
    // calls are there once.
    json::object end = {{"type", "optional"}, {"content", text(between())}};
    json::array call = {std::move(one)};
    if (!between().empty()) call.push_back(std::move(end));
    return {{"type", "plus"}, {"content", sequence(std::move(call))}};
  }

  // Text in which the mark of calls is followed by one.
  json::object text_with_calls(const std::vector<CallableTool>& tools, bool parallel) const {
    if (dialect_.bare) {
      return {{"type", "or"},
              {"elements", json::array{calls(tools, parallel), text_unlike_call()}}};
    }
    if (dialect_.prompted) {
      json::object words =
          sequence({text("all\n"), dispatch(sequence({any_call(tools, false)}), parallel, {})});
      return {{"type", "or"}, {"elements", json::array{calls(tools, parallel), std::move(words)}}};
    }
    json::object rest = dialect_.form == CallForm::kHeaded ? headed(tools, parallel, false)
                        : dialect_.list                    ? list(tools, parallel, false)
                                                           : sequence({any_call(tools, false)});
    const std::vector<std::string> others = other_marks();
    if (!is_special(dialect_.begin) && !is_special(dialect_.also_begin) &&
        !is_special(dialect_.each_begin)) {
      return dispatch(std::move(rest), parallel, others);
    }
    // A dispatch would let special tokens be text, marks among them.
    json::object words = {{"type", "any_text"}};
    if (!others.empty() || !is_special(dialect_.begin)) {
      std::vector<std::string> marks = others;
      if (!is_special(dialect_.begin)) marks.emplace_back(dialect_.begin);
      words = {{"type", "grammar"}, {"grammar", text_without(marks)}};
    }
    json::array call = {mark(dialect_.begin), std::move(rest)};
    if (parallel) call.push_back(words);
    return sequence({std::move(words), json::object{{"type", parallel ? "star" : "optional"},
                                                    {"content", sequence(std::move(call))}}});
  }

 private:
  // Text, and `rest` wherever the mark before calls comes.
  json::object dispatch(json::object rest, bool parallel,
                        const std::vector<std::string>& excludes) const {
    return {{"type", "dispatch"},
            {"rules", json::array{json::array{json::string_view(dialect_.begin), std::move(rest)}}},
            {"loop", parallel},
            {"excludes", json::value_from(excludes)}};
  }

  json::object mark(std::string_view value) const {
    if (const std::optional<int32_t> id = find_special_(value)) {
      return {{"type", "token"}, {"token", *id}};
    }
    return text(value);
  }

  bool is_special(std::string_view value) const {
    return !value.empty() && find_special_(value).has_value();
  }

  // Marks of calls, written as text, behind which a model is not to write one.
  std::vector<std::string> other_marks() const {
    if (!dialect_.each_begin.empty() && !is_special(dialect_.each_begin)) {
      return {std::string(dialect_.each_begin)};
    }
    if (dialect_.also_begin.empty() || is_special(dialect_.also_begin)) return {};
    const std::string mark(dialect_.also_begin);
    if (mark.front() == '<') return {mark};
    // A word is a mark only with a list behind it, or blanks and a list.
    return {mark + '[', mark + ' ', mark + '\n', mark + '\t', mark + '\r'};
  }

  // Where calls have no mark: text whose first byte begins none. (Their other mark is a special
  // token, which text has not.)
  static json::object text_unlike_call() {
    return {{"type", "grammar"}, {"grammar", R"(root ::= "" | [^ \t\r\n{[] [\u0000-\U0010ffff]*)"}};
  }

  std::string_view between() const {
    if (dialect_.bare) return "; ";
    return dialect_.form == CallForm::kNamed ? "" : "\n";
  }
  // What stands before a call; `marked`: its mark in front where the dialect has one that must be.
  json::array opening(std::string_view rest, bool marked) const {
    json::array parts;
    if (marked && !dialect_.begin.empty() && !dialect_.bare) parts.push_back(mark(dialect_.begin));
    parts.push_back(text(rest));
    return parts;
  }

  json::object list(const std::vector<CallableTool>& tools, bool parallel, bool marked) const {
    // The blank is there as these models write it.
    const std::string_view begin = dialect_.form == CallForm::kNamed ? " [" : "[";
    json::value one = any_call(tools, false);
    json::array parts = {sequence(opening(begin, marked)), one};
    if (parallel) {
      json::object more = sequence({text(", "), std::move(one)});
      parts.push_back({{"type", "star"}, {"content", std::move(more)}});
    }
    parts.push_back(text("]"));
    if (!dialect_.end.empty()) parts.push_back(mark(dialect_.end));
    return sequence(std::move(parts));
  }

  json::object headed(const std::vector<CallableTool>& tools, bool parallel, bool marked) const {
    json::array parts;
    if (marked) parts.push_back(mark(dialect_.begin));
    json::value one = any_call(tools, false);
    parts.push_back(one);
    if (parallel) {
      json::object more = dialect_.prompted ? sequence({text(dialect_.begin), std::move(one)})
                                            : sequence({std::move(one)});
      parts.push_back({{"type", "star"}, {"content", std::move(more)}});
    }
    if (!dialect_.end.empty()) parts.push_back(mark(dialect_.end));
    return sequence(std::move(parts));
  }

  json::object headed_call(const CallableTool& tool) const {
    json::array parts;
    if (!dialect_.each_begin.empty()) parts.push_back(mark(dialect_.each_begin));
    if (dialect_.ids == IdStyle::kKimi) {
      parts.push_back(text("functions." + tool.name + ":0"));
    } else {
      parts.push_back(text(dialect_.fenced ? "function" : tool.name));
    }
    parts.push_back(mark(dialect_.separator));
    if (dialect_.fenced) parts.push_back(text(tool.name + "\n```json\n"));
    parts.push_back({{"type", "json_schema"}, {"json_schema", schema(tool)}});
    if (dialect_.fenced) parts.push_back(text("\n```"));
    if (!dialect_.each_end.empty()) parts.push_back(mark(dialect_.each_end));
    return sequence(std::move(parts));
  }

  json::value any_call(const std::vector<CallableTool>& tools, bool marked) const {
    json::array kinds;
    for (const CallableTool& tool : tools) kinds.push_back(call(tool, marked));
    if (kinds.size() == 1) return kinds.front();
    return json::object{{"type", "or"}, {"elements", std::move(kinds)}};
  }

  json::object call(const CallableTool& tool, bool marked) const {
    if (dialect_.form == CallForm::kHeaded) return headed_call(tool);
    json::array parts;
    std::string_view after = "}";
    if (dialect_.form == CallForm::kNamed && !dialect_.list) {
      parts = opening(tool.name, marked);
      parts.push_back(mark("[ARGS]"));
      after = "";
    } else if (dialect_.form == CallForm::kTagged) {
      parts = opening(tool.name + ">", marked);
      after = "</function>";
    } else {
      std::string before = "{\"name\": ";
      append_json_string(before, tool.name);
      before += ", ";
      append_json_string(before, dialect_.arguments_key);
      before += ": ";
      const bool is_alone = dialect_.list || dialect_.bare;
      parts = is_alone ? json::array{text(before)} : opening("\n" + before, marked);
    }
    parts.push_back({{"type", "json_schema"}, {"json_schema", schema(tool)}});
    if (dialect_.list || dialect_.end.empty()) {
      if (!after.empty()) parts.push_back(text(after));
    } else {
      parts.push_back(text(std::string(after) + "\n"));
      parts.push_back(mark(dialect_.end));
    }
    return sequence(std::move(parts));
  }

  json::object schema(const CallableTool& tool) const {
    if (forces_ || tool.is_strict) return arguments_schema(tool);
    return {{"type", "object"}};
  }

  const ToolDialect dialect_;
  const FindSpecial& find_special_;
  const bool forces_;
};

// `content` behind thoughts, with `gap` between the two.
json::object behind_thoughts(const ParserSetup& setup, json::object content, std::string_view gap,
                             const FindSpecial& find_special) {
  json::array parts;
  if (const ReasoningDialect* reasoning = setup.reasoning) {
    const FormatWriter writer({}, find_special, false);
    const bool begun = setup.in_reasoning || reasoning->always;
    json::object thoughts = writer.until(begun ? "" : reasoning->begin, reasoning->end);
    if (!gap.empty()) thoughts = sequence({std::move(thoughts), text(gap)});
    if (begun) {
      parts.push_back(std::move(thoughts));
    } else {
      parts.push_back({{"type", "optional"}, {"content", std::move(thoughts)}});
    }
  }
  parts.push_back(std::move(content));
  return {{"type", "structural_tag"}, {"format", sequence(std::move(parts))}};
}

}  // namespace

namespace {

bool is_empty(const json::value& value) {
  if (value.is_object()) return value.get_object().empty();
  return value.is_null() || (value.is_array() && value.get_array().empty());
}

// Whether schemas say nothing of what fields there are, as far as they refer to one another.
class FieldFinder {
 public:
  explicit FieldFinder(const json::object& root) : root_(root) {}

  bool names_none(const json::object& schema) {
    if (++num_looked_at_ > kMaxLookedAt) return false;
    for (const char* keyword : {"additionalProperties", "const", "enum", "if", "not",
                                "propertyNames", "$dynamicRef", "unevaluatedProperties"}) {
      if (schema.contains(keyword)) return false;
    }
    for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas",
                                "patternProperties", "properties", "required"}) {
      const json::value* said = schema.if_contains(keyword);
      if (said != nullptr && !is_empty(*said)) return false;
    }
    const json::value* least = schema.if_contains("minProperties");
    if (least != nullptr && *least != 0) return false;
    if (const json::value* ref = schema.if_contains("$ref")) {
      const json::object* target = referred(*ref);
      if (target == nullptr || !names_none(*target)) return false;
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      const json::value* parts = schema.if_contains(keyword);
      if (parts == nullptr || is_empty(*parts)) continue;
      if (!parts->is_array()) return false;
      for (const json::value& part : parts->get_array()) {
        if (!part.is_object() || !names_none(part.get_object())) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kMaxLookedAt = 64;

  // "#/$defs/name"; null for any other reference.
  const json::object* referred(const json::value& ref) const {
    const json::string* text = ref.if_string();
    if (text == nullptr) return nullptr;
    for (const std::string_view word : {"$defs", "definitions"}) {
      std::string_view name = *text;
      const std::string before = "#/" + std::string(word) + "/";
      const json::value* all = root_.if_contains(word);
      if (!name.starts_with(before) || all == nullptr || !all->is_object()) continue;
      name.remove_prefix(before.size());
      const json::value* found = all->get_object().if_contains(name);
      return found == nullptr ? nullptr : found->if_object();
    }
    return nullptr;
  }

  const json::object& root_;
  int num_looked_at_ = 0;
};

}  // namespace

namespace {

bool is_of_messages(const ParserSetup& setup) {
  return setup.harmony || is_harmony(setup.calls, setup.reasoning);
}

}  // namespace

json::object arguments_schema(const CallableTool& tool) {
  const json::object* given = tool.parameters != nullptr ? tool.parameters->if_object() : nullptr;
  json::object schema = given != nullptr ? *given : json::object();
  for (const char* keyword : {"$defs", "additionalProperties", "definitions", "description",
                              "patternProperties", "properties", "required", "title"}) {
    const json::value* said = schema.if_contains(keyword);
    if (said != nullptr && said->is_null()) schema.erase(keyword);  // as some clients leave it out
  }
  schema["type"] = "object";  // of several the one that arguments have
  if (FieldFinder(schema).names_none(schema)) schema["additionalProperties"] = false;
  return schema;
}

json::object format_after_thoughts(const ParserSetup& setup, json::object content,
                                   const FindSpecial& find_special) {
  if (is_of_messages(setup))
    return harmony::after_thoughts(setup, std::move(content), find_special);
  return behind_thoughts(setup, std::move(content), "\n\n", find_special);
}

json::object call_format(const ParserSetup& setup, const std::vector<CallableTool>& tools,
                         bool parallel, const FindSpecial& find_special) {
  if (is_of_messages(setup)) return harmony::calls(setup, tools, find_special);
  const FormatWriter writer(*setup.calls, find_special, true);
  return format_after_thoughts(setup, writer.calls(tools, parallel), find_special);
}

json::object text_or_calls_format(const ParserSetup& setup, const std::vector<CallableTool>& tools,
                                  bool parallel, const FindSpecial& find_special) {
  if (is_of_messages(setup)) return harmony::content_or_calls(setup, nullptr, tools, find_special);
  const FormatWriter writer(*setup.calls, find_special, false);
  // Everything after the thoughts is text as well.
  return behind_thoughts(setup, writer.text_with_calls(tools, parallel), "", find_special);
}

json::object content_or_calls_format(const ParserSetup& setup, json::object content,
                                     const std::vector<CallableTool>& tools, bool parallel,
                                     const FindSpecial& find_special) {
  if (is_of_messages(setup)) return harmony::content_or_calls(setup, &content, tools, find_special);
  const FormatWriter writer(*setup.calls, find_special, false);
  json::array either = {std::move(content), writer.calls(tools, parallel)};
  return format_after_thoughts(setup, {{"type", "or"}, {"elements", std::move(either)}},
                               find_special);
}

}  // namespace rudder::dialect
