// The models and the backends that the suites run on, and which of their pairs the daily run has.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/ops/ops.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {

struct Backend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>()> make;
};
// The reference and the fast backend on the plainest and the best instruction set.
const std::vector<Backend>& backends();

// Every kind of tiny model, with those that run on the host alone.
std::vector<testing::TinyArch> all_archs();
// Whether stages hand over all that its layers read (model::divide_layers).
bool runs_in_stages(testing::TinyArch arch);
// So few blocks that a dozen sequences of random_asks() preempt one another.
inline int32_t tight_blocks(testing::TinyArch arch) {
  return arch == testing::TinyArch::kSinks ? 12 : 18;  // windows give most of theirs back
}
// A backend, as an index into backends(), and a model.
using Pair = std::tuple<size_t, testing::TinyArch>;
std::vector<size_t> all_backends();
// The models that a suite has in the daily run: all, or each third one. Suites that differ in who
// guesses alone have thirds, so that each model meets three or four of them.
enum class Turn : uint8_t { kFirst, kSecond, kThird, kAlways };
// Of these backends with the models of a turn: every model once, the backends in turn, for the
// daily run; and the rest, for the suites named Full, which only make test-full runs.
std::vector<Pair> daily_pairs(const std::vector<size_t>& among, Turn turn = Turn::kAlways);
std::vector<Pair> other_pairs(const std::vector<size_t>& among, Turn turn = Turn::kAlways);
std::string pair_name(const ::testing::TestParamInfo<Pair>& test);

}  // namespace rudder::metamorphic
