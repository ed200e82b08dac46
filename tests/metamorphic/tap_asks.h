// Random steering and capture for sequences that run through the executor.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "metamorphic/harness.h"
#include "rudder/tap/program.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::metamorphic {

// The capacity with room for taps of a tiny model.
step::Capacity with_taps(step::Capacity capacity, testing::TinyArch arch);
// And with that of whole encodes, of small dictionaries, and of attention patterns; only on
// backends that have them.
step::Capacity with_encodes(step::Capacity capacity, testing::TinyArch arch);

// What taps of the model may name on the backends at hand: no routers where these do not tap them.
tap::Geometry tapped_geometry(const model::ModelSpec& spec, tensor::DType act, ops::Rank rank = {});

// An op with a vector of random direction and the given length; v2 and gate vectors likewise.
void add_op(tap::Program& program, const tap::Geometry& geometry, tap::Point point, tap::TapOp op,
            double length, std::mt19937& engine);

// Sequences of the given program throughout.
std::shared_ptr<const tap::SequenceTaps> steered_by(tap::Program program, uint64_t content);

// Steers each sequence throughout by an op, or two, at one or two points, which differ from
// sequence to sequence.
void add_few_taps(std::span<Ask> asks, const step::Capacity& capacity);

// Captures the prompts' attention patterns of every head of every layer, and nothing else: a step
// of a chunk without logits ends at its last attention.
void add_every_pattern(std::span<Ask> asks, const step::Capacity& capacity);

// Adds steering to two of three sequences and capture to some, of every kind: programs that change
// at the end of the prompt, or inside it, with gates, schedules and latches; and where the capacity
// has them, whole encodes and attention patterns.
void add_random_taps(std::span<Ask> asks, const step::Capacity& capacity, uint32_t seed);

}  // namespace rudder::metamorphic
