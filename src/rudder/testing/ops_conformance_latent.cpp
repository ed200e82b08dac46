// Latent attention (ops/latent_args.h) against keys and values of every head in double precision.
#include "rudder/testing/ops_conformance_latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace rudder::testing {
namespace {

std::vector<LatentCase> latent_cases() {
  const auto shape = [](int32_t heads, int32_t nope, int32_t rope, int32_t value, int32_t rank) {
    return ops::LatentShape{
        .num_heads = heads, .nope_dim = nope, .rope_dim = rope, .value_dim = value, .rank = rank};
  };
  return {
      {"neighbours", shape(3, 12, 8, 20, 24)},
      {"halves", shape(2, 7, 6, 5, 33), true, false, true},
      {"nothing turns", shape(4, 16, 4, 9, 17), false},
      {"as published", shape(2, 128, 64, 128, 512), true, true, true},
      {"nothing that could turn", shape(4, 16, 0, 9, 17), false},
      {"16 heads of nothing that could turn", shape(16, 64, 0, 64, 512), false, false, false, 70},
      {"sinks", shape(3, 12, 8, 20, 24), true, true, false, 37, true},
      {"16 heads with sinks", shape(16, 64, 64, 64, 512), true, true, false, 70, true},
      {"shorter rows", shape(16, 64, 64, 64, 256), true, true, true, 101},
      {"20 heads", shape(20, 64, 64, 64, 512), true, true, false, 35},
      {"24 heads", shape(24, 64, 64, 64, 256), true, false, false, 18},
      {"64 heads", shape(64, 64, 64, 64, 256), true, true, false, 7},
      {"128 heads", shape(128, 64, 64, 64, 256), true, true, false, 5}};
}

TEST_P(OpsLatent, IsItsFormulaHoweverItsTokensCome) {
  if (ops::latent_ops_of(ops_.state_ops()) == nullptr) GTEST_SKIP() << "it has no latent rows";
  for (const LatentCase& one : latent_cases()) {
    SCOPED_TRACE(one.name);
    const Model model = model_of(one);
    if (model.up.weight.packed == nullptr) continue;  // the backend has no such shape
    const tensor::View whole = run(model, {one.tokens});
    const Matrix formula = expected(model);
    expect_close(read(whole), formula, allowance() * max_abs(formula), "what is read");
    std::vector<int64_t> one_by_one;
    for (int64_t t = 1; t <= one.tokens; ++t) one_by_one.push_back(t);
    const int64_t more = std::min(one.tokens, int64_t{6});
    expect_same_rows(run(model, {5, more, std::max(more, one.tokens - 14), one.tokens}), whole,
                     "in chunks");
    expect_same_rows(run(model, one_by_one), whole, "token by token");
  }
}

// Sequences of several lengths in one step, each with one token or some.
TEST_P(OpsLatent, SequencesInOneStepDoNotMeet) {
  if (ops::latent_ops_of(ops_.state_ops()) == nullptr) GTEST_SKIP() << "it has no latent rows";
  for (const LatentCase& one : latent_cases()) {
    if (one.tokens < 30) continue;
    SCOPED_TRACE(one.name);
    const Model model = model_of(one);
    if (model.up.weight.packed == nullptr) continue;  // the backend has no such shape
    const int64_t middle = one.tokens - 17;
    const std::vector<Part> parts = {{0, middle}, {middle, 4}, {middle + 4, 13}};
    const tensor::View out =
        run(model, parts, {{middle - 1, 0, 11}, {middle - 1, 1, 12}, {middle, 4, 13}});
    for (const Part& part : parts) {
      const Matrix formula = expected(model, part);
      expect_close(read(out.rows(part.first, part.count)), formula, allowance() * max_abs(formula),
                   "the part at " + std::to_string(part.first));
    }
  }
}

}  // namespace
}  // namespace rudder::testing
