#include "prompt_file.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <fstream>
#include <iostream>
#include <utility>

#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

Result<std::vector<int32_t>> encode_chat(const ModelFiles& files, const json::array& messages) {
  if (files.chat == nullptr) {
    return fail(ErrorCode::kUnsupported, "this model has no chat template", "messages");
  }
  RUDDER_TRY(const std::string text, files.chat->render(messages, nullptr, nullptr));
  return files.tokenizer->encode(text, {.add_special_tokens = false});
}

Result<std::vector<int32_t>> encode_row(const ModelFiles& files, const json::object& row) {
  if (const json::value* ids = row.if_contains("prompt_ids")) {
    std::vector<int32_t> prompt;
    if (!ids->is_array()) return fail(ErrorCode::kInvalidArgument, "is not a list", "prompt_ids");
    for (const json::value& id : ids->get_array()) {
      if (!id.is_int64())
        return fail(ErrorCode::kInvalidArgument, "is not a list of ids", "prompt_ids");
      prompt.push_back(static_cast<int32_t>(id.get_int64()));
    }
    return prompt;
  }
  if (const json::value* messages = row.if_contains("messages")) {
    if (!messages->is_array())
      return fail(ErrorCode::kInvalidArgument, "is not a list", "messages");
    return encode_chat(files, messages->get_array());
  }
  const json::value* prompt = row.if_contains("prompt");
  if (prompt == nullptr || !prompt->is_string()) {
    return fail(ErrorCode::kInvalidArgument, "needs prompt, prompt_ids or messages");
  }
  return encode_prompt(files, std::string(prompt->get_string()), false);
}

}  // namespace

Result<std::vector<int32_t>> encode_prompt(const ModelFiles& files, const std::string& text,
                                           bool chat) {
  if (!chat) return files.tokenizer->encode(text);
  const json::array messages = {json::object{{"role", "user"}, {"content", text}}};
  return encode_chat(files, messages);
}

Result<std::vector<PromptRow>> read_prompts(const ModelFiles& files, const std::string& path,
                                            bool chat) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return fail(ErrorCode::kIo, "cannot be read", path);
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::vector<PromptRow> prompts;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    PromptRow read;
    Result<std::vector<int32_t>> prompt;
    if (line[0] == '{') {
      RUDDER_TRY(json::value row, parse_json(line, where));
      read.row = std::make_shared<json::object>(std::move(row.as_object()));
      prompt = encode_row(files, *read.row);
    } else {
      read.row = std::make_shared<json::object>(json::object{{"prompt", line}});
      prompt = encode_prompt(files, line, chat);
    }
    if (!prompt) return fail(prompt.error().code, prompt.error().message, where);
    read.prompt = std::move(*prompt);
    prompts.push_back(std::move(read));
  }
  return prompts;
}

}  // namespace rudder::apps
