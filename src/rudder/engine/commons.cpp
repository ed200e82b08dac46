#include "rudder/engine/commons.h"

#include <fmt/format.h>

#include <utility>

#include "rudder/engine/request.h"
#include "rudder/step/sampling.h"

namespace rudder::engine {

Commons::Commons(Engine::Parts& parts, const Entropy& drawn, const step::Capacity& capacity)
    : tokenizer(std::move(parts.tokenizer)),
      clock(std::move(parts.clock)),
      model_identity(std::move(parts.model_identity)),
      eos_ids(std::move(parts.eos_ids)),
      turn_ends(std::move(parts.turn_ends)),
      entropy(drawn),
      forms(std::move(parts.grammars), capacity.vocab_size, *clock),
      programs(capacity.taps),
      captures(std::move(parts.captures)) {}

Result<std::shared_ptr<Commons>> Commons::make(Engine::Parts& parts, const Entropy& entropy) {
  if (!parts.executor || !parts.tokenizer || !parts.clock) {
    return fail(ErrorCode::kInvalidArgument,
                "the engine needs an executor, a tokenizer and a clock");
  }
  const step::Capacity capacity = parts.executor->capacity();
  const auto most = static_cast<size_t>(step::kMaxStopIds - RequestLimits().max_stop_ids);
  if (parts.eos_ids.size() > most) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} end-of-sequence ids, at most {} are supported", parts.eos_ids.size(), most),
        "eos_token_id");
  }
  for (const int32_t id : parts.eos_ids) {
    if (id < 0 || id >= capacity.vocab_size) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("end-of-sequence id {} is outside the vocabulary of {}", id,
                              capacity.vocab_size),
                  "eos_token_id");
    }
  }
  return std::make_shared<Commons>(parts, entropy, capacity);
}

}  // namespace rudder::engine
