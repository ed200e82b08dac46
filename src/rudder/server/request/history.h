// History: what a model does not see of a conversation. What is only history never ends one: a
// short text stands in its place, or nothing, and the answer's header names it. What the request
// asks about is refused. The readers of all APIs' conversations share it; one object for each
// request, on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::server {

class History {
 public:
  // What stands at this path of the body is not shown as it was sent, or not at all.
  void tell(std::string path);
  size_t num_told() const { return num_told_; }
  // At most 16 paths.
  const std::vector<std::string>& told() const { return told_; }

  // The text in place of a part of this type, "" where nothing is. kUnsupported where the question
  // is about it.
  Result<std::string> stand_in(std::string_view type, const std::string& path, bool is_asked);

  // What a history may lack without a word of it lost: null counts as absent. Where the question
  // lacks it, an Error. `path` is the object's.
  Result<std::string> text_in(const boost::json::object& object, std::string_view name,
                              const std::string& path, bool is_asked);
  Result<boost::json::value> content_in(const boost::json::object& message, const std::string& path,
                                        bool is_asked);
  // The type of a part: "text" where it says none and has a text.
  Result<std::string> part_type(const boost::json::object& part, const std::string& path,
                                bool is_asked);

  // The arguments of a call: an object, or the text of one as it was written. Others, such as those
  // of a call that was cut off, are kept as a text in an object.
  boost::json::value open_arguments(const boost::json::value& arguments, const std::string& path);

 private:
  std::vector<std::string> told_;
  size_t num_told_ = 0;
};

// Which of these roles' messages is the question: the last one of the user that nothing but
// instructions, and a beginning of the answer, follows. -1: none, the request goes on from a
// result.
template <typename RoleOf>
int64_t find_question(int64_t num_messages, const RoleOf& role_of) {
  for (int64_t i = num_messages - 1; i >= 0; --i) {
    const std::string_view role = role_of(i);
    if (role == "user") return i;
    if (role != "system" && role != "developer" && role != "assistant") return -1;
  }
  return -1;
}

}  // namespace rudder::server
