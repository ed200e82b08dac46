#include "rudder/server/request/prompt_truncation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rudder/server/request/field_ranges.h"
#include "rudder/server/request/sampling_fields.h"

namespace rudder::server {

size_t Truncation::max_tokens(int64_t room) const {
  return kept ? SIZE_MAX : static_cast<size_t>(std::max<int64_t>(0, room));
}

Result<Truncation> read_truncation(FieldReader& reader, int64_t room) {
  const char* const name = "truncate_prompt_tokens";
  constexpr size_t kMaxSideBytes = 16;
  Truncation truncation;
  std::string side = "left";
  read_integer(reader, name, &truncation.kept);
  reader.string("truncation_side", kMaxSideBytes, &side);
  if (side != "left" && side != "right") {
    reader.error(ErrorCode::kInvalidArgument, "must be 'left' or 'right'", "truncation_side");
  }
  RUDDER_TRY_VOID(reader.result());
  truncation.keeps_begin = side == "right";  // the side that is cut off
  if (!truncation.kept) return truncation;
  if (*truncation.kept == -1) {
    truncation.kept = room > 0 ? std::optional(room) : std::nullopt;
    return truncation;
  }
  if (*truncation.kept == 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} must be -1 or at least 1", name),
                name);
  }
  if (room <= 0 || *truncation.kept <= room) return truncation;
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{} must be at most {}, what the context has beside the output", name, room),
      name);
}

void truncate(const text::Tokenizer& tokenizer, const Truncation& truncation, PromptText& prompt) {
  if (!truncation.kept || std::cmp_less_equal(prompt.ids.size(), *truncation.kept)) return;
  const int64_t cut =
      truncation.keeps_begin ? 0 : std::ssize(prompt.ids) - *truncation.kept;  // in front
  prompt.ids.erase(prompt.ids.begin(), prompt.ids.begin() + cut);
  prompt.ids.resize(static_cast<size_t>(*truncation.kept));
  prompt.text = tokenizer.decode(prompt.ids, false);
  std::vector<steer::RoleSpan> roles;
  for (steer::RoleSpan span : prompt.roles) {
    span.tokens.begin = static_cast<int32_t>(std::max<int64_t>(0, span.tokens.begin - cut));
    span.tokens.end =
        static_cast<int32_t>(std::min<int64_t>(*truncation.kept, span.tokens.end - cut));
    if (span.tokens.end > span.tokens.begin) roles.push_back(span);
  }
  prompt.roles = std::move(roles);
}

}  // namespace rudder::server
