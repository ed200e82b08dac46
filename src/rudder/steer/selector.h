// Selectors: which tokens of a sequence an op steers, by phase, by windows and by the role that
// wrote them. The parser makes them; they are evaluated once for each request against its prompt.
// Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::steer {

// Tokens of the prompt are prefilled, generated tokens are decoded, whichever step computes them: a
// sequence that is preempted and resumed keeps the phases of its tokens.
enum class Phase : uint8_t { kAll, kPrefill, kDecode };

enum class Role : uint8_t { kSystem, kUser, kAssistant, kReasoning };
inline constexpr int32_t kNumRoles = 4;
std::string_view role_name(Role role);

// Tokens [begin, end). In a window of the prompt a negative number counts from the prompt's end:
// {-1, kNoEnd} is its last token.
struct Window {
  int32_t begin = 0;
  int32_t end = tap::kNoEnd;
  bool operator==(const Window&) const = default;
};

struct Selector {
  Phase phase = Phase::kAll;
  // Where either is given, only tokens inside a window are selected: with prompt windows alone no
  // generated token is, and the other way round.
  std::vector<Window> prompt;
  std::vector<Window> generation;
  uint8_t roles = 0;  // bits 1 << Role; 0: any
  // Only tokens of the prompt with one of these ids, ascending; empty: any. What is generated is
  // not known beforehand, so no generated token is selected.
  std::vector<int32_t> token_ids;
  bool without_special = false;   // no special token of the prompt
  bool from_last_prompt = false;  // no token before the last of the prompt
  bool operator==(const Selector&) const = default;
};

struct RoleSpan {
  Role role = Role::kUser;
  tap::PositionRange tokens;
};

// How the model writes thoughts, where that is told from its output: tap::Thoughts.
struct ThoughtMarks {
  int32_t begin_token = 0;
  int32_t end_token = 0;
  bool open = false;  // the prompt ends inside thoughts
};

// What of a request's prompt the selectors look at.
struct PromptShape {
  int32_t prompt_len = 0;
  bool has_roles = false;       // the spans say who wrote the prompt: it came from a chat template
  std::vector<RoleSpan> roles;  // ascending, disjoint; tokens of the template itself have no role
  std::optional<ThoughtMarks> thoughts = {};  // none: every generated token is the assistant's
  std::vector<int32_t> tokens = {};           // [prompt_len]; empty: not known, no token has an id
  std::vector<int32_t> special_at = {};       // positions of the prompt's special tokens, ascending
};

// The selected positions, ascending, disjoint and not adjacent; the last may end at kNoEnd.
// Generated tokens are those of `generated`. kInvalidArgument when the selector asks for roles that
// the shape does not know.
Result<std::vector<tap::PositionRange>> select(const Selector& selector, const PromptShape& shape,
                                               Role generated = Role::kAssistant);

// The selector tells thoughts from the rest of an answer.
bool tells_thoughts(const Selector& selector);

}  // namespace rudder::steer
