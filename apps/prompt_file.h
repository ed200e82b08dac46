// Reads prompts that a person writes: a text, or a file with one prompt on each line. For the
// commands that run prompts without HTTP; main thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"

namespace rudder::apps {

struct PromptRow {
  std::shared_ptr<boost::json::object> row;  // as read; a plain line is its "prompt"
  std::vector<int32_t> prompt;
};

// `chat`: as a user message in the model's chat template.
Result<std::vector<int32_t>> encode_prompt(const ModelFiles& files, const std::string& text,
                                           bool chat);

// '-' is standard input. A line is a prompt, or a JSON object with prompt, prompt_ids or messages.
// Empty lines are left out. Errors name the file and the line.
Result<std::vector<PromptRow>> read_prompts(const ModelFiles& files, const std::string& path,
                                            bool chat);

}  // namespace rudder::apps
