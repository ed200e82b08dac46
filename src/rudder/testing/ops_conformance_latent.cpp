// Latent attention (ops/latent_args.h) against keys and values of every head in double precision.
#include "rudder/testing/ops_conformance_latent.h"

#include <gtest/gtest.h>

#include <vector>

namespace rudder::testing {
namespace {

std::vector<LatentCase> latent_cases() {
  const auto shape = [](int32_t heads, int32_t nope, int32_t rope, int32_t value, int32_t rank) {
    return ops::LatentShape{
        .num_heads = heads, .nope_dim = nope, .rope_dim = rope, .value_dim = value, .rank = rank};
  };
  return {{"neighbours", shape(3, 12, 8, 20, 24)},
          {"halves", shape(2, 7, 6, 5, 33), true, false, true},
          {"nothing turns", shape(4, 16, 4, 9, 17), false},
          {"as published", shape(2, 128, 64, 128, 512), true, true, true}};
}

TEST_P(OpsLatent, IsItsFormulaHoweverItsTokensCome) {
  if (ops::latent_ops_of(ops_.state_ops()) == nullptr) GTEST_SKIP() << "it has no latent rows";
  for (const LatentCase& one : latent_cases()) {
    SCOPED_TRACE(one.name);
    const Model model = model_of(one);
    if (model.up.weight.packed == nullptr) continue;  // the backend has no such shape
    const tensor::View whole = run(model, {kTokens});
    const Matrix formula = expected(model);
    expect_close(read(whole), formula, allowance() * max_abs(formula), "what is read");
    std::vector<int64_t> one_by_one;
    for (int64_t t = 1; t <= kTokens; ++t) one_by_one.push_back(t);
    expect_same_rows(run(model, {5, 6, 23, kTokens}), whole, "in chunks");
    expect_same_rows(run(model, one_by_one), whole, "token by token");
  }
}

}  // namespace
}  // namespace rudder::testing
