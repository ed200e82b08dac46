// What a backend lacks of a model's mathematics is refused by the name of what asks for it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rudder/cpu/reference_ops.h"
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
  model::ModelSpec mixed = testing::tiny_spec(TinyArch::kTwoStreams);
  WithoutStreamOps other;
  for (const model::ModelSpec& spec : {mixed, testing::tiny_spec(TinyArch::kBlockSums)}) {
    expect_refused(spec, other, "residual",
                   "the backend cpu-reference has no residual of several streams");
  }
  std::get<model::MixedStreams>(mixed.residual).numbers = model::MixedStreams::Numbers::kPerToken;
  const auto whole = cpu::make_reference_ops();
  expect_refused(mixed, *whole, "residual.numbers",
                 "mixed streams whose numbers depend on the token have no pass yet");
}

}  // namespace
}  // namespace rudder::metamorphic
