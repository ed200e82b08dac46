#include "rudder/server/openai/input_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr int64_t kDefaultItems = 20;
constexpr int64_t kMaxItems = 100;

json::object input_text(const json::value& text) {
  return {{"type", "input_text"}, {"text", text}};
}

// Clients know messages whose content is a list of parts.
json::object listed_item(const json::object& given, std::string_view id) {
  json::object item(given);
  const json::value* own = item.if_contains("id");
  if (own == nullptr || !own->is_string()) item["id"] = id;
  if (!item.contains("type")) item["type"] = "message";
  if (item.at("type") != "message") return item;
  if (!item.contains("status")) item["status"] = "completed";
  if (json::value* content = item.if_contains("content"); content != nullptr) {
    if (content->is_string()) *content = json::array{input_text(*content)};
  }
  return item;
}

std::string_view id_of(const json::value& item) {
  return item.at("id").as_string();
}

}  // namespace

json::array listed_input(const json::value& input, std::string_view response_id) {
  json::array items;
  const auto add = [&](const json::object& item) {
    items.push_back(listed_item(
        item,
        fmt::format("item_{}_{}", response_id.substr(response_id.find('_') + 1), items.size())));
  };
  if (input.is_string()) add({{"role", "user"}, {"content", input}});
  if (!input.is_array()) return items;
  for (const json::value& item : input.get_array()) add(item.as_object());
  return items;
}

std::string_view query_parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) {
      return pair.substr(name.size() + 1);
    }
  }
  return {};
}

Result<std::string> page_of_items(const std::string& items, std::string_view query) {
  RUDDER_TRY(json::value value, parse_json(items, "the items"));
  json::array& list = value.as_array();
  const std::string_view order = query_parameter(query, "order");
  if (order != "asc") std::ranges::reverse(list);
  if (!order.empty() && order != "asc" && order != "desc") {
    return invalid_field("must be 'asc' or 'desc'", "order");
  }
  int64_t limit = kDefaultItems;
  if (const std::string_view given = query_parameter(query, "limit"); !given.empty()) {
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), limit);
    if (error != std::errc() || end != given.data() + given.size() || limit < 1 ||
        limit > kMaxItems) {
      return invalid_field(fmt::format("must be a number from 1 to {}", kMaxItems), "limit");
    }
  }
  auto begin = list.begin();
  if (const std::string_view after = query_parameter(query, "after"); !after.empty()) {
    begin = std::ranges::find(list, after, id_of);
    if (begin == list.end()) return invalid_field("is no item of this response", "after");
    ++begin;
  }
  const auto end = begin + std::min<ptrdiff_t>(limit, list.end() - begin);
  json::object page = {{"object", "list"}, {"data", json::array(begin, end)}};
  const bool is_empty = begin == end;
  page["first_id"] = is_empty ? json::value() : begin->at("id");
  page["last_id"] = is_empty ? json::value() : (end - 1)->at("id");
  page["has_more"] = end != list.end();
  return to_json_text(page);
}

}  // namespace rudder::server
