// Tap programs in double precision, written naively; the taps of backends and the programs that
// steer makes are compared with them. Formulas: tap/tap_op.h. Tests only; plain values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/tap/program.h"

namespace rudder::testing {

// Of one slot: the samples of each latch; of a kSense, n and the reading of each token in turn.
using ReferenceLatches = std::array<std::vector<double>, tap::kNumLatches>;

double inner(std::span<const double> a, std::span<const double> b);

// SteerMoE: `wanted` has 1, -1 and 0.
std::vector<double> reference_chosen_scores(std::vector<double> scores,
                                            std::span<const double> wanted);
std::vector<double> reference_chosen_logits(std::vector<double> logits,
                                            std::span<const double> wanted);

// h after one op whose vectors begin at their offsets in `vectors`. n: tap::ScheduleKind.
std::vector<double> reference_op(const tap::TapOp& op, std::span<const float> vectors,
                                 std::vector<double> h, int32_t n, ReferenceLatches& latches);

// What kFeature ops of a token leave for later points.
using ReferenceRelays = std::array<double, tap::kNumRelays>;

// h after a program's ops at one point. `relays` may be null for a program without.
std::vector<double> reference_program(const tap::Program& program, tap::Point point,
                                      std::vector<double> h, int32_t n, ReferenceLatches& latches,
                                      ReferenceRelays* relays = nullptr);

}  // namespace rudder::testing
