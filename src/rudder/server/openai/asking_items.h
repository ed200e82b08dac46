// Items of a conversation of POST /v1/responses that ask for something: tools that they bring along
// (`additional_tools`, what a `tool_search_output` found), settings that they change
// (`configuration_update`). What they ask for holds for as long as the conversation goes on, so
// that a response that is remembered has them beside its messages. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::server {

struct AskingItem {
  const boost::json::object* fields = nullptr;  // in the list that was looked through
  std::string_view type;                        // likewise
  std::string path;                             // in the request
};

// Those of `items`, in order, behind those that are in `found` already.
void find_asking_items(const boost::json::array& items, std::string_view path,
                       std::vector<AskingItem>* found);

// As a JSON list; "" where there are none.
std::string asking_text(const std::vector<AskingItem>& items);

}  // namespace rudder::server
