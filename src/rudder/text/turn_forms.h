// Which sequences of messages a chat template renders. Many know a system message in front alone,
// or none, or want users and assistants in turn; what they do not know they refuse, or leave out
// without a word. So the template is tried once, at load. Internal to the room but for TurnForms.
#pragma once

#include <boost/json/fwd.hpp>

#include "rudder/text/call_arguments.h"
#include "rudder/text/chat_template.h"

namespace rudder::text {

struct TurnForms {
  bool system_first = true;     // a system message in front
  bool system_later = true;     // and behind any other message
  bool developer_first = true;  // the same of the role "developer"
  bool developer_later = true;
  bool user_after_user = true;    // two messages of the user in a row
  bool user_after_result = true;  // a message of the user behind a result of a tool
  bool assistant_after_assistant = true;
  bool assistant_first = true;  // a message of the assistant in front of the first of the user
  bool without_user = true;     // no message of the user at all
  bool calls = true;            // a call of a tool, with its result behind it
  bool results = true;          // that result, whether or not the call is shown
  bool calls_without_results = true;  // a call, and something else behind it
  bool results_without_calls = true;  // a result, and no call in front of it
  bool several_calls = true;          // two calls in one message, with their results behind it
  bool text_beside_thoughts = true;   // text and thoughts in a message that calls
  bool empty_texts = true;            // messages and results of no words
};

// `tokens`: the variables that the files give the template. All true where it does not even render
// a question.
TurnForms find_turn_forms(const ChatTemplate& chat_template, const boost::json::object& tokens,
                          ArgumentForm arguments);

}  // namespace rudder::text
