// The golden suite: compares each checkpoint of tests/golden with the answers that Hugging Face
// transformers computed from it (tools/golden). There is one loader and one forward pass, so this
// compares every mechanism of every architecture with an implementation that is not ours. Then it
// runs the same sequence in chunks, and among other sequences, and expects the same. A backend
// joins with GOLDEN_BACKENDS in a test file of its own; GOLDEN_TWINS adds the comparison with its
// twin on the CPU.
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

#include "logit_distance.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/safetensors.h"

namespace rudder::golden {

using MakeOps = std::function<std::unique_ptr<ops::Ops>()>;

// How far rows of logits may be from others; their standard deviation is about 3.
struct Limits {
  float tolerance = 0;   // of a logit
  double mean_kl = 0;    // of the predicted distributions
  double agreement = 1;  // share of the tokens whose most likely next one is the same
  // Rows, the farthest ones, whose distributions are not counted: of random routers, of which a
  // near tie falls the other way in another precision, and that token has another expert.
  size_t uncounted = 0;
};

// f32 in another order, and what lower precision is held to (docs/contracts/checkpoints.md).
inline constexpr Limits kF32Limits = {1e-4f, 1e-9, 1};
inline constexpr Limits kBf16Limits = {0.3f, 1e-3, 0.99};
inline constexpr Limits kFp8Limits = {3.0f, 1e-2, 0.96};
// Of random weights.
inline constexpr Limits kUntrainedBf16Limits = {2.0f, 5e-4, 0.6, 2};

struct Backend {
  std::string name;
  MakeOps make;
  Limits wide;             // of checkpoints whose weights are wide
  Limits fp8;              // of those that are fp8
  bool exact_rows = true;  // a row is the same bits in any company; else `mean_kl` holds there too
};
inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

// A backend and another that rounds where it does. Limits as of Backend.
struct Twins {
  std::string name;
  MakeOps make;
  MakeOps other;
  Limits wide;
  Limits fp8;
};
inline void PrintTo(const Twins& twins, std::ostream* out) {
  *out << twins.name;
}

std::vector<std::string> checkpoint_names();

// Scales of an fp8 KV cache: of each layer, of each head.
struct KvScaleTable {
  std::vector<std::vector<float>> k;
  std::vector<std::vector<float>> v;
};

// Logits of each token of `ids` as one prompt, [tokens, vocab], by the checkpoint in a folder of
// the repository. For models whose answers are not stored: one backend is held to another.
std::vector<float> prompt_logits(const std::string& folder, std::unique_ptr<ops::Ops> ops,
                                 const std::vector<int32_t>& ids,
                                 const KvScaleTable* scales = nullptr);
// The same in a step with two other prompts; at most 256 tokens in all.
std::vector<float> logits_in_company(const std::string& folder, std::unique_ptr<ops::Ops> ops,
                                     const std::vector<int32_t>& ids,
                                     const std::vector<int32_t>& before,
                                     const std::vector<int32_t>& behind);
// The scales by which the largest key and value of each head that `ids` make are stored as 448.
KvScaleTable calibrated_kv_scales(const std::string& folder, const std::vector<int32_t>& ids);

// The embedded models are trained: their predictions have the spread that real ones have. Each
// continues its own greedy text, which the CPU writes in f32; `logits` are of each token.
struct DemoText {
  static constexpr const char* kFolder = "models/demo";
  static constexpr size_t kVocab = 2560;
  std::vector<int32_t> ids;
  std::vector<float> logits;
};
DemoText greedy_text(const std::string& folder);
const DemoText& demo_text();  // of kFolder

// What was stored of a checkpoint.
struct Answers {
  std::vector<int32_t> prompt;
  std::vector<float> logits;
  std::vector<int32_t> greedy_ids;
  std::vector<float> greedy_logits;
  int32_t max_len = 0;
};

class Model;

class Golden : public ::testing::TestWithParam<std::tuple<std::string, Backend>> {
 protected:
  Golden();
  ~Golden() override;
  void SetUp() override;

  static const std::string& name() { return std::get<0>(GetParam()); }
  static const Backend& backend() { return std::get<1>(GetParam()); }

  Limits limits() const;

  // Rows of logits are near what was stored, in every way that the backend promises.
  void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                    const char* what);
  // The same rows computed another way.
  void expect_same(std::span<const float> actual, std::span<const float> expected,
                   const std::string& what);
  // The prompt in chunks; logits of all its tokens.
  std::vector<float> run_prompt(size_t chunk, int32_t seq);

  Answers answers_;
  std::unique_ptr<Model> model_;
  size_t vocab_ = 0;
};

class GoldenTwins : public ::testing::TestWithParam<std::tuple<std::string, Twins>> {};

// "llama3_cuda_fp8".
std::string test_name(const std::string& checkpoint, const std::string& backend);

// `names`: of the checkpoints that the backends run. The lists are made when the tests are listed.
#define GOLDEN_TESTS(suite, base, names, list)                                                \
  INSTANTIATE_TEST_SUITE_P(                                                                   \
      suite, base, ::testing::Combine(::testing::ValuesIn(names), ::testing::ValuesIn(list)), \
      [](const auto& test) {                                                                  \
        return test_name(std::get<0>(test.param), std::get<1>(test.param).name);              \
      })
#define GOLDEN_BACKENDS(suite, names, backends) GOLDEN_TESTS(suite, Golden, names, backends)
#define GOLDEN_TWINS(suite, names, twins) GOLDEN_TESTS(suite, GoldenTwins, names, twins)

}  // namespace rudder::golden
