#include "rudder/text/chat_template.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/parser.h"
#include "rudder/text/jinja/resolver.h"

namespace rudder::text {

struct ChatTemplate::Impl {
  jinja::Template parsed;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return fail(ErrorCode::kTooLarge, fmt::format("chat template has {} bytes, the limit is {}",
                                                  source.size(), kMaxSourceBytes));
  }
  RUDDER_TRY(jinja::Template parsed, jinja::parse(source));
  RUDDER_TRY_VOID(jinja::resolve(parsed));
  return ChatTemplate(std::unique_ptr<const Impl>(new Impl{std::move(parsed)}));
}

Result<std::string> ChatTemplate::render(const boost::json::object& context,
                                         const RenderLimits& limits,
                                         std::chrono::system_clock::time_point now) const {
  jinja::Budget budget{limits.max_steps, limits.max_memory_bytes, limits.max_output_bytes,
                       limits.max_depth};
  jinja::Interpreter interpreter(budget, context, now);
  try {
    return interpreter.render(impl_->parsed);
  } catch (jinja::TemplateError& raised) {
    raised.error.where = fmt::format("chat template line {}", interpreter.line());
    return tl::unexpected<Error>(std::move(raised.error));
  }
}

bool ChatTemplate::loops_over_content() const {
  return impl_->parsed.loops_over_content;
}

bool ChatTemplate::knows_word(std::string_view word) const {
  return impl_->parsed.words.contains(word);
}

bool ChatTemplate::reads_global(std::string_view name) const {
  return impl_->parsed.names.contains(name);
}

}  // namespace rudder::text
