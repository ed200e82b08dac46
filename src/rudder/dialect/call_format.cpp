#include "rudder/dialect/call_format.h"

#include <boost/json.hpp>
#include <utility>

#include "rudder/base/json.h"

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
  FormatWriter(const ToolDialect& dialect, const FindSpecial& find_special)
      : dialect_(dialect), find_special_(find_special) {}

  json::object mark(std::string_view value) const {
    if (const std::optional<int32_t> id = find_special_(value)) {
      return {{"type", "token"}, {"token", *id}};
    }
    return text(value);
  }

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
    json::array kinds;
    for (const CallableTool& tool : tools) kinds.push_back(call(tool));
    json::value one = kinds.size() == 1
                          ? kinds.front()
                          : json::value{{"type", "or"}, {"elements", std::move(kinds)}};
    if (!dialect_.list) {
      if (!parallel) return sequence({std::move(one)});
      // What stands between calls may stand after the last one too: the parser drops it, and the
      // calls are there once.
      json::object end = {{"type", "optional"}, {"content", text(between())}};
      json::array call = {std::move(one)};
      if (!between().empty()) call.push_back(std::move(end));
      return {{"type", "plus"}, {"content", sequence(std::move(call))}};
    }
    json::array parts = {sequence(opening(list_opening())), one};
    if (parallel) {
      json::object more = sequence({text(", "), std::move(one)});
      parts.push_back({{"type", "star"}, {"content", std::move(more)}});
    }
    parts.push_back(text("]"));
    if (!dialect_.end.empty()) parts.push_back(mark(dialect_.end));
    return sequence(std::move(parts));
  }

 private:
  std::string_view list_opening() const {
    return dialect_.form == CallForm::kNamed ? " [" : "[";  // as these models write it
  }
  std::string_view between() const {
    if (dialect_.bare) return "; ";
    return dialect_.form == CallForm::kNamed ? "" : "\n";
  }
  // What stands before a call, its mark in front where the dialect has one that must be.
  json::array opening(std::string_view rest) const {
    json::array parts;
    if (!dialect_.begin.empty() && !dialect_.bare) parts.push_back(mark(dialect_.begin));
    parts.push_back(text(rest));
    return parts;
  }

  json::object call(const CallableTool& tool) const {
    json::array parts;
    std::string_view after = "}";
    if (dialect_.form == CallForm::kNamed && !dialect_.list) {
      parts = opening(tool.name);
      parts.push_back(mark("[ARGS]"));
      after = "";
    } else {
      std::string before = "{\"name\": ";
      append_json_string(before, tool.name);
      before += ", ";
      append_json_string(before, dialect_.arguments_key);
      before += ": ";
      parts = dialect_.list ? json::array{text(before)} : opening("\n" + before);
      if (dialect_.bare && !dialect_.list) parts = {text(before)};
    }
    parts.push_back({{"type", "json_schema"}, {"json_schema", arguments_schema(tool)}});
    if (dialect_.list || dialect_.end.empty()) {
      if (!after.empty()) parts.push_back(text(after));
    } else {
      parts.push_back(text(std::string(after) + "\n"));
      parts.push_back(mark(dialect_.end));
    }
    return sequence(std::move(parts));
  }

  const ToolDialect dialect_;
  const FindSpecial& find_special_;
};

}  // namespace

json::object arguments_schema(const CallableTool& tool) {
  const json::object* given = tool.parameters != nullptr ? tool.parameters->if_object() : nullptr;
  if (given == nullptr) return {{"type", "object"}, {"additionalProperties", false}};
  json::object schema = *given;
  schema.emplace("type", "object");
  return schema;
}

json::object format_after_thoughts(const ParserSetup& setup, json::object content,
                                   const FindSpecial& find_special) {
  json::array parts;
  if (const ReasoningDialect* reasoning = setup.reasoning) {
    const FormatWriter writer({}, find_special);
    const bool begun = setup.in_reasoning || reasoning->always;
    json::object thoughts = writer.until(begun ? "" : reasoning->begin, reasoning->end);
    thoughts = sequence({std::move(thoughts), text("\n\n")});
    if (begun) {
      parts.push_back(std::move(thoughts));
    } else {
      parts.push_back({{"type", "optional"}, {"content", std::move(thoughts)}});
    }
  }
  parts.push_back(std::move(content));
  return {{"type", "structural_tag"}, {"format", sequence(std::move(parts))}};
}

json::object call_format(const ParserSetup& setup, const std::vector<CallableTool>& tools,
                         bool parallel, const FindSpecial& find_special) {
  const FormatWriter writer(*setup.calls, find_special);
  return format_after_thoughts(setup, writer.calls(tools, parallel), find_special);
}

}  // namespace rudder::dialect
