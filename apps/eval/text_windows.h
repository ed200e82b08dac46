// How a text is cut into windows whose tokens are scored: three definitions of perplexity over a
// text that is longer than a context. Pure; for `rudder eval`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::apps {

enum class WindowKind : uint8_t {
  // Each token once, the first behind `prefix`: windows of `window` tokens side by side, the last
  // one with as many tokens of context as it lacks tokens to score (lm-evaluation-harness,
  // lm_eval/utils.py, get_rolling_token_windows with context_len 1).
  kRolling,
  // Whole windows side by side, a shorter end left out; the second half of each is scored but for
  // its first token. Where the tokenizer writes a prefix, it stands in place of each window's first
  // token (llama.cpp, tools/perplexity).
  kHalves,
  // Windows that begin `stride` tokens apart; scored is what no window before has scored. The
  // text's first token is never (Hugging Face transformers, "Perplexity of fixed-length models").
  kStrided,
};

std::string_view window_kind_name(WindowKind kind);  // "rolling", "halves", "strided"
Result<WindowKind> parse_window_kind(std::string_view name);

struct WindowSettings {
  WindowKind kind = WindowKind::kRolling;
  int32_t window = 0;  // tokens
  int32_t stride = 0;  // of kStrided; else 0
  bool operator==(const WindowSettings&) const = default;
};

// Tokens [begin, end) of the text; those from first_scored on are scored.
struct TextWindow {
  enum class Prefix : uint8_t { kNone, kBefore, kInPlaceOfFirst };

  int32_t begin = 0;
  int32_t end = 0;
  int32_t first_scored = 0;
  Prefix prefix = Prefix::kNone;

  int32_t prompt_tokens() const { return end - begin + (prefix == Prefix::kBefore ? 1 : 0); }
  int32_t num_scored() const { return end - first_scored; }
  bool operator==(const TextWindow&) const = default;
};

// kInvalidArgument, with the field: window or stride are out of range, or the text has too few
// tokens. `has_prefix`: there is a token that texts begin with.
Result<std::vector<TextWindow>> make_windows(int32_t num_tokens, const WindowSettings& settings,
                                             bool has_prefix);

}  // namespace rudder::apps
