// Conversation: the messages of a request, as the reader of its API has read them: in the form that
// templates expect, each with its place in the client's body. One object for each request, on the
// tokenise pool.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rudder/server/request/history.h"
#include "rudder/text/chat_prompt.h"

namespace rudder::server {

struct Conversation {
  std::string field = "messages";  // what errors of the whole are about
  boost::json::array messages = {};
  std::vector<std::string> paths = {};  // of each message, in the client's body
  boost::json::object kwargs = {};      // the template's variables
  text::ChatOptions options = {};
  bool add_special_tokens = false;  // the template writes them itself
  History history = {};

  void add(boost::json::object message, std::string path) {
    messages.push_back(std::move(message));
    paths.push_back(std::move(path));
  }
  boost::json::object& last() { return messages.back().get_object(); }
};

}  // namespace rudder::server
