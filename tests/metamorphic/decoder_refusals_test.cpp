// What a backend lacks of a model's mathematics is refused by the name of what asks for it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rudder/cpu/reference_ops.h"
#include "rudder/model/check_facets.h"
#include "rudder/model/decoder.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

// A backend as a GPU is.
class WithoutStreamOps final : public testing::PassingOps {
 public:
  WithoutStreamOps() : PassingOps(cpu::make_reference_ops()) {}
  ops::StreamOps* stream_ops() override { return nullptr; }
};

TEST(DecoderRefusals, ResidualsWithoutAPassAreRefusedByName) {
  const auto expect_refused = [](const model::ModelSpec& spec, ops::Ops& ops,
                                 const std::string& where, const std::string& message) {
    const model::Weights weights = testing::random_weights(spec, ops, 7).value();
    const std::vector<ops::KvLayer> kv(spec.layers.size());
    const auto decoder = model::Decoder::make(spec, weights, kv, ops, {.max_tokens = 8});
    ASSERT_FALSE(decoder);
    EXPECT_EQ(decoder.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(decoder.error().where, where);
    EXPECT_EQ(decoder.error().message, message);
  };
  WithoutStreamOps other;
  for (const TinyArch arch : {TinyArch::kTwoStreams, TinyArch::kBlockSums, TinyArch::kHyper,
                              TinyArch::kDelayed, TinyArch::kGatedStreams, TinyArch::kNormedSums,
                              TinyArch::kGatedAdds, TinyArch::kDepthAdds}) {
    expect_refused(testing::tiny_spec(arch), other, "residual",
                   "the backend cpu-reference has no residual of several streams");
  }
}

// As a GPU is today.
class WithoutLatentOps final : public testing::PassingOps {
 public:
  WithoutLatentOps() : PassingOps(cpu::make_reference_ops()) {}
  ops::LatentOps* latent_ops() override { return nullptr; }
};

TEST(DecoderRefusals, LatentAttentionIsRefusedByItsKey) {
  WithoutLatentOps ops;
  const auto refused = model::check_facets(testing::tiny_spec(TinyArch::kLatent), ops);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "kv_lora_rank");
  EXPECT_EQ(refused.error().message,
            "the backend cpu-reference has no kernels of latent attention");
  EXPECT_TRUE(
      model::check_facets(testing::tiny_spec(TinyArch::kLatent), *cpu::make_reference_ops()));
}

// Ops with a state that take no more than some sizes.
class WithStateLimits final : public testing::PassingOps {
 public:
  explicit WithStateLimits(const ops::StateLimits& limits)
      : PassingOps(cpu::make_reference_ops()), limits_(limits) {}
  ops::StateLimits state_limits() const override { return limits_; }

 private:
  const ops::StateLimits limits_;
};

TEST(DecoderRefusals, LongFiltersAndStatesAreRefused) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kDelta);
  const auto mixer = std::get<model::GatedDelta>(spec.layers[0].mixer);
  const ops::StateLimits own{.filter = mixer.conv_length, .key_dim = mixer.key_dim};
  WithStateLimits enough(own);
  EXPECT_TRUE(model::check_facets(spec, enough));
  for (const ops::StateLimits& limits :
       {ops::StateLimits{own.filter - 1, own.key_dim}, {own.filter, own.key_dim - 1}}) {
    WithStateLimits ops(limits);
    const auto refused = model::check_facets(spec, ops);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(refused.error().where, "layer_types");
  }
}

}  // namespace
}  // namespace rudder::metamorphic
