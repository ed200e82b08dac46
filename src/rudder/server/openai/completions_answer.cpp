// The shape of /v1/completions: text, and logprobs as parallel lists.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"

namespace rudder::server {
namespace {

class CompletionsFormat final : public AnswerFormat {
 public:
  CompletionsFormat(AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : AnswerFormat(std::move(options), std::move(tokenizer), "text_completion",
                     "text_completion") {}

  void append_events(std::string& out, const ChoicePiece& piece) override;

 private:
  void append_whole_choice(std::string& out, const ChoicePiece& piece) const override;
  void append_document_fields(std::string& out,
                              std::span<const ChoicePiece> choices) const override;
  void append_choice(std::string& out, const ChoicePiece& piece) const;
  void append_logprobs(std::string& out, const ChoicePiece& piece) const;
  void append_top(std::string& out, const engine::OutputToken& token) const;
};

void CompletionsFormat::append_choice(std::string& out, const ChoicePiece& piece) const {
  out += "{\"index\":";
  fmt::format_to(std::back_inserter(out), "{}", piece.index);
  out += ",\"text\":";
  append_json_string(out, piece.text);
  out += ",\"logprobs\":";
  if (options_.logprobs) {
    append_logprobs(out, piece);
  } else {
    out += "null";
  }
  out.push_back(',');
  append_ending(out, piece);
  if (piece.first && !piece.prompt_ids.empty()) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, piece.prompt_ids);
  }
  if (options_.prompt_logprobs) append_prompt_logprobs(out, piece);
}

void CompletionsFormat::append_events(std::string& out, const ChoicePiece& piece) {
  out += event_start_;
  out += ",\"choices\":[";
  append_choice(out, piece);
  append_event_end(out, piece);
  out += "}\n\n";
}

void CompletionsFormat::append_whole_choice(std::string& out, const ChoicePiece& piece) const {
  append_choice(out, piece);
  if (!options_.return_token_ids) out += R"(,"token_ids":null,"prompt_token_ids":null)";
  if (!options_.prompt_logprobs) out += R"(,"prompt_logprobs":null)";
  out.push_back('}');
}

void CompletionsFormat::append_document_fields(std::string& out,
                                               std::span<const ChoicePiece>) const {
  out += R"(,"service_tier":null,"kv_transfer_params":null)";
}

// Of the echoed prompt, where there is one, and of the piece's own tokens.
void CompletionsFormat::append_logprobs(std::string& out, const ChoicePiece& piece) const {
  std::string tokens, logprobs, tops, offsets;
  int64_t offset = piece.text_offset;
  const auto append = [&](const engine::OutputToken& token) {
    for (std::string* list : {&tokens, &logprobs, &tops, &offsets}) {
      if (!list->empty()) list->push_back(',');
    }
    append_json_string(tokens, token_text(token.token));
    if (token.has_logprobs) {
      append_logprob(logprobs, token.logprob);
      append_top(tops, token);
    } else {
      logprobs += "null";
      tops += "null";
    }
    fmt::format_to(std::back_inserter(offsets), "{}", offset);
    offset += text_length(*tokenizer_, token.token);
  };
  if (options_.echo_logprobs && piece.first) {
    for (const engine::OutputToken& token : piece.prompt_tokens) append(token);
  }
  for (const engine::OutputToken& token : piece.tokens) {
    if (token.has_logprobs) append(token);
  }
  fmt::format_to(std::back_inserter(out),
                 "{{\"text_offset\":[{}],\"token_logprobs\":[{}],\"tokens\":[{}],"
                 "\"top_logprobs\":[{}]}}",
                 offsets, logprobs, tokens, tops);
}

// The sampled token and the likeliest ones by their text; tokens that read the same share a key,
// and the likeliest of them keeps it.
void CompletionsFormat::append_top(std::string& out, const engine::OutputToken& token) const {
  std::vector<std::string> written;
  const auto append = [&](int32_t id, float logprob) {
    std::string text = token_text(id);
    if (std::find(written.begin(), written.end(), text) != written.end()) return;
    if (!written.empty()) out.push_back(',');
    append_json_string(out, text);
    out.push_back(':');
    append_logprob(out, logprob);
    written.push_back(std::move(text));
  };
  out.push_back('{');
  const auto wanted = static_cast<size_t>(options_.top_logprobs);
  for (const engine::TopLogprob& top :
       std::span(token.top).first(std::min(wanted, token.top.size()))) {
    append(top.token, top.logprob);
  }
  append(token.token, token.logprob);
  out.push_back('}');
}

}  // namespace

std::unique_ptr<AnswerFormat> make_completions_format(
    AnswerOptions options, std::shared_ptr<const text::Tokenizer> tokenizer) {
  return std::make_unique<CompletionsFormat>(std::move(options), std::move(tokenizer));
}

}  // namespace rudder::server
