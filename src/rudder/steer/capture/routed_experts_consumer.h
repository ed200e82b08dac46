// The consumer `routed_experts`: which experts the tokens of a request went through, of all layers
// in one array. Its payload is a JSON string: base64 of an npy file of int16 [tokens, layers,
// chosen], as vLLM's answers have it; -1 where a layer has no experts, or a token fewer.
#pragma once

#include <memory>
#include <string_view>

#include "rudder/steer/capture/answer_budget.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/tap/site.h"

namespace rudder::steer::capture {

inline constexpr std::string_view kRoutedExpertsConsumer = "routed_experts";

std::shared_ptr<Consumer> make_routed_experts_consumer(const tap::Geometry& geometry,
                                                       std::shared_ptr<AnswerBudget> budget);

}  // namespace rudder::steer::capture
