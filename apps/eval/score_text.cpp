#include "eval/score_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "local_client.h"
#include "rudder/base/progress.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::apps {
namespace {

// The token that the tokenizer writes in front of a text; -1: none.
Result<int32_t> written_prefix(const text::Tokenizer& tokenizer) {
  RUDDER_TRY(const std::vector<int32_t> around, tokenizer.encode(""));
  return around.empty() || around.front() != tokenizer.bos_id() ? -1 : around.front();
}

std::vector<int32_t> prompt_of(const ScoredText& text, const TextWindow& window) {
  std::vector<int32_t> prompt(static_cast<size_t>(window.prompt_tokens()));
  const bool is_before = window.prefix == TextWindow::Prefix::kBefore;
  std::copy(text.tokens.begin() + window.begin, text.tokens.begin() + window.end,
            prompt.begin() + (is_before ? 1 : 0));
  if (window.prefix != TextWindow::Prefix::kNone) prompt.front() = text.prefix;
  return prompt;
}

// Writes what an answer tells of a window to its scored tokens, which begin at `first`.
Result<void> take_scores(const LocalAnswer& answer, const TextWindow& window, size_t first,
                         ScoredText* text) {
  if (answer.error) return tl::unexpected<Error>(*answer.error);
  const auto count = static_cast<size_t>(window.num_scored());
  const auto& all = answer.prompt_logprobs;
  const auto top = static_cast<size_t>(text->top);
  if (all.size() + 1 != static_cast<size_t>(window.prompt_tokens())) {
    return fail(ErrorCode::kInternal,
                "the engine scored another number of tokens than it was given");
  }
  for (size_t i = 0; i < count; ++i) {
    const engine::OutputToken& scored = all[all.size() - count + i];
    if (scored.top.size() < top) {
      return fail(ErrorCode::kInternal, "the engine told fewer of the likeliest tokens than asked");
    }
    text->logprobs[first + i] = scored.logprob;
    for (size_t k = 0; k < top; ++k) {
      text->top_tokens[(first + i) * top + k] = scored.top[k].token;
      text->top_logprobs[(first + i) * top + k] = scored.top[k].logprob;
    }
  }
  return {};
}

}  // namespace

Result<ScoredText> encode_text_file(const ModelFiles& files, const std::string& path,
                                    const WindowSettings& windows, bool parse_special) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 30;
  RUDDER_TRY(const std::string raw, weights::read_text_file(path, kMostBytes));
  const text::Tokenizer& tokenizer = *files.tokenizer;
  ScoredText text;
  text.model = files.name;
  text.windows = windows;
  const bool is_rolling = windows.kind == WindowKind::kRolling;
  Result<std::vector<int32_t>> tokens =
      tokenizer.encode(raw, {.add_special_tokens = !is_rolling, .parse_special = parse_special});
  if (!tokens) return fail(tokens.error().code, tokens.error().message, path);
  text.tokens = std::move(*tokens);
  if (is_rolling) {
    text.prefix = tokenizer.bos_id().value_or(tokenizer.eos_id().value_or(-1));
  } else {
    RUDDER_TRY(text.prefix, written_prefix(tokenizer));
  }
  return text;
}

Result<void> score_text(ModelSession& session, int32_t top, const std::string& label,
                        ScoredText* text) {
  const engine::RequestLimits limits = session.engine->limits();
  RUDDER_TRY(
      const std::vector<TextWindow> windows,
      make_windows(static_cast<int32_t>(text->tokens.size()), text->windows, text->prefix >= 0));
  std::vector<size_t> firsts;  // of each window, where its scored tokens begin
  int64_t total = 0;
  for (const TextWindow& window : windows) {
    if (window.prompt_tokens() + 1 > limits.max_seq_len) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a window of {} tokens does not fit --max-model-len {}",
                              window.prompt_tokens(), limits.max_seq_len),
                  "window");
    }
    firsts.push_back(text->positions.size());
    for (int32_t i = window.first_scored; i < window.end; ++i) text->positions.push_back(i);
    total += window.prompt_tokens();
  }
  text->top = std::min({top, limits.max_logprobs, limits.vocab_size});
  const size_t scored = text->num_scored();
  text->logprobs.resize(scored);
  text->top_tokens.resize(scored * static_cast<size_t>(text->top));
  text->top_logprobs.resize(text->top_tokens.size());

  Progress progress(label, false);
  std::mutex mutex;
  int64_t done = 0;
  Result<void> result;
  {
    LocalClient client(*session.engine);
    for (size_t i = 0; i < windows.size(); ++i) {
      engine::RequestParams params;
      params.prompt = prompt_of(*text, windows[i]);
      params.max_tokens = 1;
      params.sampling.temperature = 0;
      params.sampling.num_prompt_logprobs = text->top;
      const auto finish = [&, i](LocalAnswer&& answer) {
        const std::lock_guard lock(mutex);
        Result<void> taken = take_scores(answer, windows[i], firsts[i], text);
        if (result && !taken) result = std::move(taken);
        progress.update(done += windows[i].prompt_tokens(), total);
      };
      RUDDER_TRY_VOID(client.submit(std::move(params), finish));
    }
  }
  return result;
}

}  // namespace rudder::apps
