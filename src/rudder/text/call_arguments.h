// The form in which a chat template takes the arguments of tool calls: as an object that it prints,
// or as the text of one that it joins to other texts, as DeepSeek's do. The template is tried once,
// at load. Internal to the room.
#pragma once

#include <boost/json.hpp>

#include "rudder/text/chat_template.h"

namespace rudder::text {

enum class ArgumentForm { kObject, kText };

// kText where the template refuses an object, or prints it as Python does, and shows a text as it
// is. `tokens`: the variables that the files give it.
ArgumentForm find_argument_form(const ChatTemplate& chat_template,
                                const boost::json::object& tokens);

// No arguments in this form, for trials of templates.
boost::json::value no_arguments(ArgumentForm form);

// Gives the arguments of the message's calls this form. A text that is there stays as it was
// written; an object becomes the text that json.dumps makes of it; what is neither an object nor
// the text of one stays.
void fit_arguments(ArgumentForm form, boost::json::object& message);

}  // namespace rudder::text
