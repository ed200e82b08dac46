// Reads prompts that a person writes: a text, or a file with one prompt on each line. For the
// commands that run prompts without HTTP; main thread.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"

namespace rudder::apps {

// A line of a file, an object: as read, or a plain line as its "prompt".
struct PromptLine {
  boost::json::object row;
  bool is_plain = false;
  std::string where;           // file and line
  std::optional<Error> fault;  // it begins as an object does and is none; `row` is empty
};

struct PromptRow {
  std::shared_ptr<boost::json::object> row;  // as PromptLine's
  std::vector<int32_t> prompt;
};

// `chat`: as a user message in the model's chat template.
Result<std::vector<int32_t>> encode_prompt(const ModelFiles& files, const std::string& text,
                                           bool chat);

// '-' is standard input. A line is a prompt, or a JSON object. Empty lines are left out. Errors
// name the file and the line.
Result<std::vector<PromptLine>> read_prompt_lines(const std::string& path);

// The first fault of a line, where each has to be a prompt.
Result<void> check_prompt_lines(const std::vector<PromptLine>& lines);

// The same, of objects with prompt, prompt_ids or messages, as tokens.
Result<std::vector<PromptRow>> read_prompts(const ModelFiles& files, const std::string& path,
                                            bool chat);

}  // namespace rudder::apps
