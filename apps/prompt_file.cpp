#include "prompt_file.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <fstream>
#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/base/utf8.h"

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

Result<std::vector<PromptLine>> read_prompt_lines(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return fail(ErrorCode::kIo, "cannot be read", path);
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::vector<PromptLine> lines;
  std::string text;
  for (int number = 1; std::getline(in, text); ++number) {
    // As files come from other systems: a mark of UTF-8 in front, lines that end with \r\n.
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (number == 1 && text.starts_with(kMark)) text.erase(0, kMark.size());
    if (text.ends_with('\r')) text.pop_back();
    constexpr std::string_view kBlanks = " \t";
    if (text.find_first_not_of(kBlanks) == std::string::npos) continue;
    PromptLine line;
    line.where = fmt::format("{}:{}", path, number);
    line.is_plain = text[text.find_first_not_of(kBlanks)] != '{';
    if (line.is_plain) {
      line.row = {{"prompt", text}};
      if (const std::optional<size_t> bad = find_invalid_utf8(text)) {
        line.fault = Error{ErrorCode::kInvalidArgument,
                           fmt::format("is not UTF-8 at byte {}", *bad), line.where};
      }
    } else {
      Result<json::value> row = parse_json(text, line.where);
      if (row) line.row = std::move(row->as_object());
      if (!row) line.fault = row.error();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Result<void> check_prompt_lines(const std::vector<PromptLine>& lines) {
  for (const PromptLine& line : lines) {
    if (line.fault) return tl::unexpected(*line.fault);
  }
  return {};
}

Result<std::vector<PromptRow>> read_prompts(const ModelFiles& files, const std::string& path,
                                            bool chat) {
  RUDDER_TRY(std::vector<PromptLine> lines, read_prompt_lines(path));
  RUDDER_TRY_VOID(check_prompt_lines(lines));
  std::vector<PromptRow> prompts;
  for (PromptLine& line : lines) {
    const Result<std::vector<int32_t>> prompt =
        line.is_plain ? encode_prompt(files, std::string(line.row.at("prompt").as_string()), chat)
                      : encode_row(files, line.row);
    if (!prompt) return fail(prompt.error().code, prompt.error().message, line.where);
    prompts.push_back({std::make_shared<json::object>(std::move(line.row)), *prompt});
  }
  return prompts;
}

}  // namespace rudder::apps
