// Steering against models whose weights do what it does, and captured rows against each other: no
// formula of the taps is used twice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::metamorphic {
namespace {

using tap::Point;
using tap::Site;
using testing::TinyArch;

constexpr step::Capacity kCapacity = {.num_slots = 8,
                                      .num_blocks = 128,
                                      .block_size = 16,
                                      .max_tokens_per_step = 256,
                                      .max_seq_len = 128,
                                      .vocab_size = 160,
                                      .max_in_flight = 2};

// Hands each weight that writes to the residual (out = hidden: attn_out, down, attn_out, ...) to
// `edit` before it is packed.
class EditingOps final : public testing::PassingOps {
 public:
  // [hidden, in] row-major, and [hidden] or nothing; `number` counts these weights.
  using Edit =
      std::function<void(int number, std::vector<float>& weight, std::vector<float>& bias)>;

  EditingOps(std::unique_ptr<ops::Ops> inner, Edit edit)
      : PassingOps(std::move(inner)), edit_(std::move(edit)) {}

  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    const tensor::Shape shape = parts.front().codes.shape;
    if (parts.size() != 1 || shape[0] != 64) return inner_->make_linear(parts);
    std::vector<float> weight = floats(parts.front().codes);
    std::vector<float> bias = floats(parts.front().bias);
    edit_(number_++, weight, bias);
    const tensor::Shape column = {static_cast<int64_t>(bias.size())};
    ops::LinearPart edited = ops::wide_part({weight.data(), tensor::DType::kF32, shape});
    if (!bias.empty()) edited.bias = {bias.data(), tensor::DType::kF32, column};
    return inner_->make_linear({&edited, 1});
  }

 private:
  static std::vector<float> floats(const ops::View& view) {
    if (view.empty()) return {};
    std::vector<float> values(static_cast<size_t>(view.shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = view.dtype == tensor::DType::kF32 ? view.as<float>()[i]
                                                    : tensor::to_float(view.as<tensor::BF16>()[i]);
    }
    return values;
  }

  const Edit edit_;
  int number_ = 0;
};

std::vector<Ask> prompts() {
  std::vector<Ask> asks = random_asks(8, 40, 30);
  for (Ask& ask : asks) {
    ask.sampling = {};
    ask.sampling.temperature = 0;
    ask.sampling.num_logprobs = 3;
  }
  return asks;
}

// Same tokens, and logprobs as near as sums in another order are.
void expect_as_edited(TinyArch arch, const tap::Program& program, const EditingOps::Edit& edit) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 100;
  std::vector<Ask> asks = prompts();
  const Backend edited = {
      "edited", [&] { return std::make_unique<EditingOps>(cpu::make_reference_ops(), edit); }};
  const Outcome plain = run(*tiny_executor(backends()[0], arch, kCapacity), settings, asks);
  const Outcome expected = run(*tiny_executor(edited, arch, kCapacity), settings, asks);
  for (Ask& ask : asks) ask.taps = steered_by(program, 1);
  const Outcome got =
      run(*tiny_executor(backends()[0], arch, with_taps(kCapacity, arch)), settings, asks);
  double moved = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    ASSERT_EQ(got.got[i].tokens, expected.got[i].tokens) << i;
    ASSERT_EQ(got.got[i].logprobs.size(), expected.got[i].logprobs.size());
    for (size_t k = 0; k < got.got[i].logprobs.size(); ++k) {
      ASSERT_NEAR(got.got[i].logprobs[k], expected.got[i].logprobs[k], 2e-4) << i << ", " << k;
    }
    moved += std::abs(double{got.got[i].logprobs[0]} - plain.got[i].logprobs[0]);
  }
  EXPECT_GT(moved, 0.1);  // steering did something
}

TEST(Steering, AddingToTheResidualIsABiasOfTheLayer) {
  const tap::Geometry geometry = with_taps(kCapacity, TinyArch::kPreNorm).geometry;
  std::mt19937 engine(1);
  for (const Site site : {Site::kMlpOut, Site::kResidPost}) {
    tap::Program program;
    tap::TapOp op;
    op.strength = 0.75f;
    add_op(program, geometry, {1, site}, op, 6, engine);
    expect_as_edited(TinyArch::kPreNorm, program,
                     [&](int number, std::vector<float>&, std::vector<float>& bias) {
                       if (number != 3) return;  // down of layer 1
                       for (size_t i = 0; i < 64; ++i) bias[i] += 0.75f * program.vectors[i];
                     });
  }
}

TEST(Steering, AblatingEveryBranchIsOrthogonalWeights) {
  for (const TinyArch arch : {TinyArch::kPreNorm, TinyArch::kHeadNorm}) {
    const tap::Geometry geometry = with_taps(kCapacity, arch).geometry;
    tap::Program program;
    tap::TapOp ablate;
    ablate.kind = tap::OpKind::kAxis;
    ablate.lo = -std::numeric_limits<float>::infinity();
    ablate.hi = std::numeric_limits<float>::infinity();
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (const Site site : {Site::kAttnOut, Site::kMlpOut}) {
        std::mt19937 engine(2);  // the same axis
        add_op(program, geometry, {layer, site}, ablate, 1, engine);
      }
    }
    const auto project = [&](std::vector<float>& columns) {
      const size_t width = columns.size() / 64;
      for (size_t c = 0; c < width; ++c) {
        double along = 0;
        for (size_t r = 0; r < 64; ++r) along += program.vectors[r] * columns[r * width + c];
        for (size_t r = 0; r < 64; ++r) {
          columns[r * width + c] -= static_cast<float>(along * program.vectors[r]);
        }
      }
    };
    expect_as_edited(arch, program, [&](int, std::vector<float>& weight, std::vector<float>& bias) {
      project(weight);
      project(bias);
    });
  }
}

// What a layer's output is multiplied by: 1 where the checkpoint holds no number for it.
float scale_of(const weights::Checkpoint& checkpoint, int32_t layer) {
  const std::string name = fmt::format("layers.{}.layer_scalar", layer);
  for (const std::string_view prefix : {"model.", "model.language_model."}) {
    const weights::TensorInfo* const found = checkpoint.find(std::string(prefix) + name);
    if (found == nullptr) continue;
    EXPECT_EQ(found->view.dtype, tensor::DType::kBF16);
    return tensor::to_float(*found->view.as<tensor::BF16>());
  }
  return 1;
}

// Captured rows of every architecture of the goldens, everywhere, at every position.
class CaptureIdentities : public ::testing::TestWithParam<std::string> {
 protected:
  static void check(std::unique_ptr<ops::Ops> ops) {
    auto checkpoint = weights::Checkpoint::open_folder(root() + GetParam());
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    exec::ExecSettings settings;
    settings.max_model_len = 48;
    settings.kv_cache_memory_bytes = 2 << 20;
    settings.capture_memory_mb = 16;
    auto loaded = exec::load_model(**checkpoint, std::move(ops), settings,
                                   {.max_num_seqs = 4, .max_num_batched_tokens = 20}, {});
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    const tap::Geometry geometry = loaded->executor->capacity().geometry;
    auto set = std::make_shared<tap::CaptureSet>();
    std::vector<int64_t> begin(static_cast<size_t>(geometry.num_points()), -1);
    int64_t elements = 0;
    for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
      for (int32_t site = 0; site < tap::kNumSites; ++site) {
        const Point point{layer, static_cast<Site>(site)};
        if (!geometry.has(point)) continue;
        set->points.push_back({point, false});
        begin[static_cast<size_t>(point.index())] = elements;
        elements += geometry.width(point);
      }
    }
    auto taps = std::make_shared<tap::SequenceTaps>();
    taps->capture = set;
    taps->captured = {{0, tap::kNoEnd}};
    std::vector<Ask> asks(2);
    for (size_t i = 0; i < 2; ++i) {
      asks[i].prompt.resize(23 + i);
      std::iota(asks[i].prompt.begin(), asks[i].prompt.end(), static_cast<int32_t>(3 + 20 * i));
      asks[i].sampling.temperature = 0;
      asks[i].max_len = 40;
      asks[i].taps = taps;
    }
    sched::SchedSettings scheduling;
    scheduling.max_num_seqs = 4;
    scheduling.max_num_batched_tokens = 20;
    const Outcome outcome = run(*loaded->executor, scheduling, asks);
    for (const Got& got : outcome.got) {
      ASSERT_EQ(got.captured.size(), 39u);
      for (const auto& [position, rows] : got.captured) {
        const auto at = [&](int32_t layer, Site site, int32_t i) {
          const int64_t first = begin[static_cast<size_t>(Point{layer, site}.index())];
          return rows[static_cast<size_t>(first + i)];
        };
        for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
          const float scale = scale_of(**checkpoint, layer);
          for (int32_t i = 0; i < geometry.hidden; ++i) {
            const float mid = at(layer, Site::kResidPre, i) + at(layer, Site::kAttnOut, i);
            ASSERT_EQ(at(layer, Site::kResidMid, i), mid) << "layer " << layer;
            // What a layer makes of its own row of the token is a third addend.
            if (!loaded->spec.layer_embedding.exists()) {
              ASSERT_EQ(at(layer, Site::kResidPost, i), scale * (mid + at(layer, Site::kMlpOut, i)))
                  << "layer " << layer;
            }
            if (layer + 1 == geometry.num_layers) continue;
            ASSERT_EQ(at(layer + 1, Site::kResidPre, i), at(layer, Site::kResidPost, i));
          }
        }
      }
    }
  }
  static std::string root() { return std::string(RUDDER_SOURCE_DIR) + "/tests/golden/"; }
};

TEST_P(CaptureIdentities, BranchesAddUpToTheResidual) {
  check(cpu::make_reference_ops());
  check(cpu::make_cpu_ops({}).value());
}

std::vector<std::string> goldens() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RUDDER_SOURCE_DIR) + "/tests/golden")) {
    if (std::filesystem::exists(entry.path() / "config.json")) {
      names.push_back(entry.path().filename());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}
std::string name_of(const ::testing::TestParamInfo<std::string>& golden) {
  std::string name = golden.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Golden, CaptureIdentities, ::testing::ValuesIn(goldens()), name_of);

}  // namespace
}  // namespace rudder::metamorphic
