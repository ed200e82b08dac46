#include "rudder/server/openai/responses_replay.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <iterator>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

class Replay {
 public:
  explicit Replay(int64_t after) : after_(after) {}

  void lifecycle(std::string_view type, const json::object& response) {
    add(type, {{"response", response}});
  }
  void item(const json::object& item, int64_t index);
  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view type, json::object&& fields);
  void part(const json::object& item, const json::object& part, json::object at, int64_t index);

  const int64_t after_;
  int64_t next_number_ = 0;
  std::string out_;
};

void Replay::add(std::string_view type, json::object&& fields) {
  const int64_t number = next_number_++;
  if (number <= after_) return;
  json::object event = {{"type", type}, {"sequence_number", number}};
  for (auto& [key, value] : fields) event.emplace(key, std::move(value));
  fmt::format_to(std::back_inserter(out_), "event: {}\ndata: {}\n\n", type, to_json_text(event));
}

json::object with_field(json::object fields, std::string_view name, json::value value) {
  fields[name] = std::move(value);
  return fields;
}

void Replay::part(const json::object& item, const json::object& part, json::object at,
                  int64_t index) {
  at["content_index"] = index;
  const bool is_text = item.at("type") == "message";
  const std::string type = is_text ? "response.output_text" : "response.reasoning_text";
  add("response.content_part.added", with_field(at, "part", with_field(part, "text", "")));
  json::object delta = with_field(at, "delta", part.at("text"));
  json::object done = with_field(at, "text", part.at("text"));
  if (is_text) delta["logprobs"] = done["logprobs"] = part.at("logprobs");
  add(type + ".delta", std::move(delta));
  add(type + ".done", std::move(done));
  add("response.content_part.done", with_field(at, "part", part));
}

// What an item has of text, and which events tell it.
void Replay::item(const json::object& item, int64_t index) {
  const json::object at = {{"item_id", item.at("id")}, {"output_index", index}};
  json::object begun = with_field(item, "status", "in_progress");
  for (const char* grows : {"arguments", "input"}) {
    if (begun.contains(grows)) begun[grows] = "";
  }
  const json::value* content = item.if_contains("content");
  if (content != nullptr) begun["content"] = json::array();
  add("response.output_item.added", {{"output_index", index}, {"item", begun}});
  if (content != nullptr) {
    int64_t i = 0;
    for (const json::value& each : content->as_array()) part(item, each.as_object(), at, i++);
  } else if (item.contains("input")) {
    add("response.custom_tool_call_input.delta", with_field(at, "delta", item.at("input")));
    add("response.custom_tool_call_input.done", with_field(at, "input", item.at("input")));
  } else if (item.contains("arguments")) {
    add("response.function_call_arguments.delta", with_field(at, "delta", item.at("arguments")));
    add("response.function_call_arguments.done",
        with_field(with_field(at, "name", item.at("name")), "arguments", item.at("arguments")));
  }
  add("response.output_item.done", {{"output_index", index}, {"item", item}});
}

}  // namespace

Result<std::string> replayed_events(const std::string& document, int64_t after) {
  RUDDER_TRY(const json::value value, parse_json(document, "the response"));
  const json::object& whole = value.as_object();
  json::object begun =
      with_field(with_field(whole, "status", "in_progress"), "output", json::array());
  for (const char* later : {"usage", "completed_at", "incomplete_details"}) begun[later] = nullptr;
  Replay replay(after);
  replay.lifecycle("response.created", begun);
  replay.lifecycle("response.in_progress", begun);
  int64_t index = 0;
  for (const json::value& item : whole.at("output").as_array()) {
    replay.item(item.as_object(), index++);
  }
  const std::string_view status = whole.at("status").as_string();
  replay.lifecycle(fmt::format("response.{}", status), whole);
  return replay.take();
}

}  // namespace rudder::server
