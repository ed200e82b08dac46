#include "rudder/server/openai/asking_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/server/request/message_parts.h"

namespace rudder::server {

namespace json = boost::json;

void find_asking_items(const json::array& items, std::string_view path,
                       std::vector<AskingItem>* found) {
  constexpr std::string_view kTypes[] = {"additional_tools", "tool_search_output",
                                         "configuration_update"};
  for (size_t i = 0; i < items.size(); ++i) {
    const json::object* fields = items[i].if_object();
    if (fields == nullptr) continue;
    const std::string_view type = string_in(*fields, "type");
    if (std::ranges::count(kTypes, type) == 0) continue;
    found->push_back({fields, type, fmt::format("{}[{}]", path, i)});
  }
}

std::string asking_text(const std::vector<AskingItem>& items) {
  if (items.empty()) return "";
  json::array list;
  for (const AskingItem& item : items) list.emplace_back(*item.fields);
  return to_json_text(list);
}

}  // namespace rudder::server
