#include "rudder/steer/latches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "rudder/steer/dot.h"

namespace rudder::steer {
namespace {

int exponent_of(const Row& vector) {
  constexpr int kMost = 60;
  const double norm = std::sqrt(dot(vector.values(), vector.values()));
  int exponent = 0;
  if (norm > 0) std::frexp(norm, &exponent);
  return std::clamp(exponent, -kMost, kMost);
}

Row scaled(const Row& row, int exponent) {
  auto buffer = std::make_shared_for_overwrite<float[]>(static_cast<size_t>(row.width));
  std::ranges::transform(row.values(), buffer.get(),
                         [&](float value) { return std::ldexp(value, -exponent); });
  return {std::move(buffer), 0, row.width};
}

LatchFiller score_of(const Gate& gate, int exponent) {
  LatchFiller filler;
  filler.op.kind = tap::OpKind::kScore;
  filler.vector = scaled(gate.vector, exponent);
  filler.selector.phase = Phase::kPrefill;
  return filler;
}

// From the prompt's last token on, whose reading the first generated token needs.
LatchFiller sense_of(const Gate& gate) {
  LatchFiller filler;
  filler.op.kind = tap::OpKind::kSense;
  filler.op.hi = gate.control.of_feature ? 1.0f : 0.0f;
  filler.op.a = static_cast<float>(gate.control.scale);
  filler.op.b = static_cast<float>(gate.control.bias);
  filler.op.lo = static_cast<float>(gate.control.gate);
  filler.vector = gate.vector;
  filler.selector.from_last_prompt = true;
  return filler;
}

}  // namespace

bool Latches::Known::is_of(const Gate& other) const {
  return gate.kind == other.kind && gate.point == other.point &&
         gate.control.reads_as(other.control) &&
         std::ranges::equal(gate.vector.values(), other.vector.values());
}

Result<Latches::Latch> Latches::find(const OpSpec& spec) {
  const Gate& gate = spec.gate;
  const auto found =
      std::ranges::find_if(known_, [&](const Known& known) { return known.is_of(gate); });
  Latch latch;
  latch.number = static_cast<int32_t>(found - known_.begin());
  if (found != known_.end()) {
    latch.exponent = found->exponent;
    return latch;
  }
  if (latch.number == tap::kNumLatches) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("more than {} different prompt scores and readings of controls",
                            tap::kNumLatches),
                spec.where);
  }
  const bool is_score = gate.kind == Gate::Kind::kPromptScore;
  latch.exponent = is_score ? exponent_of(gate.vector) : 0;
  latch.filler = is_score ? score_of(gate, latch.exponent) : sense_of(gate);
  latch.filler->op.latch = latch.number;
  known_.push_back({gate, latch.exponent});
  return latch;
}

}  // namespace rudder::steer
