// ChatPrompt: a model's chat templates and the special-token strings they are given; turns messages
// into the prompt text, as `apply_chat_template(tokenize=False)` does. Encode its result with
// add_special_tokens = false: the template writes BOS itself.
// Loaded once, rendered by the tokenise pool. Immutable: safe from any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/chat_template.h"
#include "rudder/text/message_marks.h"
#include "rudder/text/side_files.h"
#include "rudder/text/turn_forms.h"

namespace rudder::text {

struct ChatOptions {
  bool add_generation_prompt = true;
  // The last message is the beginning of the answer: the prompt ends with its content. Excludes
  // add_generation_prompt.
  bool continue_final_message = false;
  RenderLimits limits = {};
};

// What a model's folder and the command line say of templates, beside the files of tokens. Each
// may be empty.
struct ChatTemplateFiles {
  std::string jinja = {};        // chat_template.jinja
  std::string tools_jinja = {};  // additional_chat_templates/tool_use.jinja
  std::string old_json = {};     // chat_template.json: {"chat_template": ...}, of processors
  std::string kwargs = {};       // a JSON object: variables that hold where a request has no others
};

class ChatPrompt {
 public:
  // The template comes from the files where one of them is not empty (the JSON last), else from
  // tokenizer_config.json, as the next function reads it. kInvalidArgument: of `kwargs`.
  static Result<std::shared_ptr<const ChatPrompt>> from_files(const TokenFiles& tokens,
                                                              const ChatTemplateFiles& files);
  // The template comes from `chat_template_jinja` where that is not empty, else from
  // `chat_template` in the config (a string, or a list of {name, template}: "default", and
  // "tool_use" when tools are given).
  // kNotFound if neither has one. kCorruptFile, kUnsupported, kInvalidArgument from the parse.
  static Result<std::shared_ptr<const ChatPrompt>> from_json(
      std::string_view tokenizer_config_json, std::string_view chat_template_jinja = {});
  // Reads the files of tokens and of templates, where they exist.
  static Result<std::shared_ptr<const ChatPrompt>> from_directory(
      const std::filesystem::path& directory);
  ~ChatPrompt();

  // `messages`: objects with `role` and `content` (string, null, or parts {"type": "text", "text"},
  // which are joined with newlines where the template wants a string). The role "developer" becomes
  // "system" where the template does not know it; the thoughts of an assistant's message, under any
  // of their names (kThoughtNames), are there under each that the template reads. `tools` may be
  // null.
  // `kwargs` (may be null) are further template variables ("enable_thinking"); they may not replace
  // messages, tools or the template. Errors name the field ("messages[2].content").
  Result<std::string> render(const boost::json::array& messages, const boost::json::array* tools,
                             const boost::json::object* kwargs,
                             const ChatOptions& options = {}) const;

  // Where `prompt`, rendered from the same arguments, shows which message; text of the template
  // itself belongs to none, and a message that it leaves out has no span. kUnsupported where that
  // cannot be told for sure.
  Result<std::vector<MessageSpan>> find_messages(std::string_view prompt,
                                                 const boost::json::array& messages,
                                                 const boost::json::array* tools,
                                                 const boost::json::object* kwargs,
                                                 const ChatOptions& options = {}) const;

  // Which sequences of messages the template that is used with or without tools renders.
  const TurnForms& turn_forms(bool has_tools) const;

  // The templates as they were written, one after another: what they show of the model's family.
  const std::string& source() const;

 private:
  struct Impl;
  struct Prepared;
  Result<Prepared> prepare(const boost::json::array& messages, const boost::json::array* tools,
                           const boost::json::object* kwargs, const ChatOptions& options) const;
  static Result<std::shared_ptr<const ChatPrompt>> load(const boost::json::object& config,
                                                        const ChatTemplateFiles& files);
  explicit ChatPrompt(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rudder::text
