// OpenAI's batch files for `rudder generate --input`: a line is {"custom_id", "method", "url",
// "body"}, its answer {"id", "custom_id", "response": {"status_code", "request_id", "body"},
// "error"}. Bodies go to a server in this process over a Unix socket, so that fields, answers and
// errors are those of `rudder serve`. Main thread.
#pragma once

#include <boost/json/object.hpp>
#include <vector>

#include "model_session.h"
#include "prompt_file.h"
#include "rudder/base/progress.h"
#include "rudder/base/result.h"

namespace rudder::apps {

// Whether a line of the file says that it is one: it has custom_id, method or url, and a body.
bool is_batch(const std::vector<PromptLine>& lines);

// Answers every line: its row becomes the answer. A line that is no request, or has the custom_id
// of another, is answered with an error. `fields` are for bodies of /v1/completions and
// /v1/chat/completions that do not have them.
Result<void> answer_batch(const ModelSession& session, const boost::json::object& fields,
                          const ProgressFn& progress, std::vector<PromptLine>* lines);

}  // namespace rudder::apps
