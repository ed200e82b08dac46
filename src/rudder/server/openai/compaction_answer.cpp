// The shape of /v1/responses/compact: one item that stands for the conversation, which only this
// server reads.
#include <fmt/format.h>

#include <iterator>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"
#include "rudder/server/request/sealed_text.h"

namespace rudder::server {
namespace {

class CompactionFormat final : public AnswerFormat {
 public:
  CompactionFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "response.compaction",
                     "response.compaction") {}

  void append_events(std::string&, const ChoicePiece&) override {}

  std::string document(std::span<const ChoicePiece> choices, const engine::Usage& total) override {
    std::string summary;
    for (const ChoicePiece& choice : choices) summary += choice.text;
    std::string out = "{\"id\":";
    append_json_string(out, options_.id);
    fmt::format_to(std::back_inserter(out),
                   ",\"object\":\"response.compaction\",\"created_at\":{},\"output\":[{{\"id\":",
                   options_.created);
    append_json_string(out, "cmp_" + options_.id.substr(options_.id.find('_') + 1));
    out += ",\"type\":\"compaction\",\"encrypted_content\":";
    append_json_string(out, seal_text(kSealedSummary, summary));
    fmt::format_to(
        std::back_inserter(out),
        "}}],\"usage\":{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},"
        "\"output_tokens\":{},\"output_tokens_details\":{{\"reasoning_tokens\":{}}},"
        "\"total_tokens\":{}}}}}",
        total.prompt_tokens, total.cached_tokens, total.completion_tokens, total.reasoning_tokens,
        int64_t{total.prompt_tokens} + int64_t{total.completion_tokens});
    return out;
  }

 private:
  void append_whole_choice(std::string&, const ChoicePiece&) const override {}
};

}  // namespace

std::unique_ptr<AnswerFormat> make_compaction_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<CompactionFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
