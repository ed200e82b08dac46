// Stands in for the text room's ChatPrompt in this room's tests: ChatML, whatever the template.
#include <boost/json.hpp>

#include "rudder/text/chat_prompt.h"

namespace rudder::text {

struct ChatPrompt::Impl {};
ChatPrompt::ChatPrompt(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatPrompt::~ChatPrompt() = default;

Result<std::shared_ptr<const ChatPrompt>> ChatPrompt::from_json(std::string_view,
                                                                std::string_view) {
  return std::shared_ptr<const ChatPrompt>(new ChatPrompt(nullptr));
}

Result<std::string> ChatPrompt::render(const boost::json::array& messages,
                                       const boost::json::array*, const boost::json::object*,
                                       const ChatOptions& options) const {
  std::string out;
  for (const boost::json::value& message : messages) {
    const boost::json::value& content = message.at("content");
    if (message.at("role") == "tool") {
      return fail(ErrorCode::kInvalidArgument, "unexpected role tool");
    }
    out += "<|im_start|>" + std::string(message.at("role").as_string()) + "\n";
    if (content.is_string()) {
      out += content.get_string();
    } else if (content.is_array()) {
      for (const auto& part : content.get_array()) out += part.at("text").as_string();
    }
    if (!options.continue_final_message) out += "<|im_end|>\n";
  }
  if (options.add_generation_prompt) out += "<|im_start|>assistant\n";
  return out;
}

}  // namespace rudder::text
