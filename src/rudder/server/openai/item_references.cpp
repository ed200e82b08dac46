#include "rudder/server/openai/item_references.h"

#include <boost/json.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/message_parts.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// Where the references to the items of one response stand in `input`, by the items' ids.
using Indices = std::map<std::string, size_t, std::less<>>;

// The response of an item `msg_HEX_3` is `resp_HEX`; "" where an id is of another form.
std::string response_of(std::string_view item_id) {
  const size_t begin = item_id.find('_');
  const size_t end = item_id.rfind('_');
  if (begin == std::string_view::npos || begin + 1 >= end) return "";
  return "resp_" + std::string(item_id.substr(begin + 1, end - begin - 1));
}

// By response.
std::map<std::string, Indices> references_in(const json::array& items) {
  std::map<std::string, Indices> out;
  for (size_t i = 0; i < items.size(); ++i) {
    const json::object* fields = items[i].if_object();
    if (fields == nullptr || !is_item_reference(*fields)) continue;
    const std::string_view id = string_in(*fields, "id");
    if (const std::string response = response_of(id); !response.empty()) {
      out[response].emplace(id, i);
    }
  }
  return out;
}

// Puts those of `found`, a list, at their indices; each leaves `indices` with it.
void put_items(const json::value* found, json::array& items, Indices& indices) {
  if (found == nullptr || !found->is_array()) return;
  for (const json::value& item : found->get_array()) {
    const json::object& fields = item.as_object();
    const auto index = indices.find(string_in(fields, "id"));
    if (index == indices.end() || is_item_reference(fields)) continue;
    items[index->second] = item;
    indices.erase(index);
  }
}

}  // namespace

bool is_item_reference(const json::object& item) {
  const json::value* type = item.if_contains("type");
  if (type != nullptr && !type->is_null()) return string_in(item, "type") == "item_reference";
  return item.contains("id") && !item.contains("role") && !item.contains("content");
}

std::optional<json::value> with_referred_items(const json::value& input, ResponseStore& store,
                                               int tenant) {
  if (!input.is_array()) return std::nullopt;
  std::map<std::string, Indices> references = references_in(input.get_array());
  if (references.empty()) return std::nullopt;
  json::array items = input.get_array();
  for (auto& [response, indices] : references) {
    const std::optional<StoredResponse> stored = store.find(response, tenant);
    if (!stored) continue;
    if (const Result<json::value> document = parse_json(*stored->document, "the response")) {
      put_items(document->as_object().if_contains("output"), items, indices);
    }
    if (stored->input == nullptr || indices.empty()) continue;
    if (const Result<json::value> asked = parse_json(*stored->input, "its input")) {
      put_items(&*asked, items, indices);
    }
  }
  return json::value(std::move(items));
}

}  // namespace rudder::server
