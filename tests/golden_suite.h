// The golden suite: each checkpoint of tests/golden against what Hugging Face transformers computed
// from it (tools/golden). One model, one loader, one forward pass: every mechanism of every
// architecture is compared with an implementation that is not ours. Then the same sequence cut into
// chunks, and among other sequences, must give the same. A backend joins by GOLDEN_BACKENDS in a
// test file of its own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "rudder/ops/ops.h"
#include "rudder/weights/safetensors.h"

namespace rudder::golden {

// What a backend promises, where logits have a standard deviation of 2.
struct Backend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>()> make;
  float tolerance = 0;     // of a logit
  double mean_kl = 0;      // of the predicted distributions
  double agreement = 1;    // share of the tokens whose most likely next one is the same
  bool exact_rows = true;  // a row is the same bits in any company; else `mean_kl` holds there too
};
inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

std::vector<std::string> checkpoint_names();

// Logits of each token of `ids` as one prompt, [tokens, vocab], by the checkpoint in a folder of
// the repository. For models whose answers are not stored: one backend is held to another.
std::vector<float> prompt_logits(const std::string& folder, std::unique_ptr<ops::Ops> ops,
                                 const std::vector<int32_t>& ids);

// How far the rows of `actual` are from those of `expected`.
struct Distance {
  double mean_kl = 0;    // of softmax(expected) || softmax(actual)
  double agreement = 0;  // share of rows with the largest logit at the same token
};
Distance distance(std::span<const float> expected, std::span<const float> actual, size_t vocab);

class Model;

class Golden : public ::testing::TestWithParam<std::tuple<std::string, Backend>> {
 protected:
  Golden();
  ~Golden() override;
  void SetUp() override;

  static const std::string& name() { return std::get<0>(GetParam()); }
  static const Backend& backend() { return std::get<1>(GetParam()); }

  // Rows of logits are near what was stored, in every way that the backend promises.
  void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                    const char* what);
  // The same rows computed another way.
  void expect_same(std::span<const float> actual, std::span<const float> expected,
                   const std::string& what);
  // The prompt in chunks; logits of all its tokens.
  std::vector<float> run_prompt(size_t chunk, int32_t seq);

  std::vector<int32_t> prompt_;
  std::vector<float> logits_;
  std::vector<int32_t> greedy_ids_;
  std::vector<float> greedy_logits_;
  std::unique_ptr<Model> model_;
  size_t vocab_ = 0;
};

std::string test_name(const ::testing::TestParamInfo<std::tuple<std::string, Backend>>& info);

// `backends` is called when the tests are listed.
#define GOLDEN_BACKENDS(suite, backends)                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                                       \
      suite, Golden,                                                                              \
      ::testing::Combine(::testing::ValuesIn(checkpoint_names()), ::testing::ValuesIn(backends)), \
      test_name)

}  // namespace rudder::golden
