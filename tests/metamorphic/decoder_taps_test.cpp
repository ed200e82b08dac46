// What the decoder asks of a backend: without taps exactly the plain ops, with taps every point of
// the model once, in the order in which a token reaches them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rudder/cpu/reference_ops.h"
#include "rudder/model/decoder.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/ops/make_kv_layer.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/gated_values.h"
#include "rudder/testing/low_precision_ops.h"
#include "rudder/testing/tap_table.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {
namespace {

using ops::View;
using tensor::DType;
using testing::TinyArch;

struct Tapped {
  int32_t point = 0;
  int64_t num_rows = 0;  // of the op
  int64_t num_tokens = 0;
};

// Writes down what it passes on.
class RecordingOps final : public testing::PassingOps {
 public:
  explicit RecordingOps(std::unique_ptr<ops::Ops> inner) : PassingOps(std::move(inner)) {}

  // Also of a device that encodes nothing: none of these tests' tokens has anything to encode.
  ops::FeatureOps* feature_ops() override { return this; }
  void encode(const ops::EncodeArgs& args) override {
    if (ops::FeatureOps* const features = inner_->feature_ops()) features->encode(args);
  }

  std::vector<std::string> calls;
  std::vector<Tapped> taps;
  std::function<void()> on_linear;
  // Before it is passed on.
  std::function<void(ops::Ops& inner, const ops::ResidualNormArgs& args)> on_norm;

  void embed(const ops::EmbedArgs& args) override {
    calls.emplace_back("embed");
    inner_->embed(args);
  }
  void linear(const ops::LinearArgs& args) override {
    calls.emplace_back("linear");
    if (on_linear) on_linear();
    inner_->linear(args);
  }
  void attention(const ops::AttentionArgs& args) override {
    calls.emplace_back("attention");
    inner_->attention(args);
  }
  void quantise(const ops::QuantiseArgs& args) override {
    calls.emplace_back("quantise");
    inner_->quantise(args);
  }
  void gather_rows(const ops::GatherRowsArgs& args) override {
    calls.emplace_back("gather");
    inner_->gather_rows(args);
  }
  void residual_norm(const ops::ResidualNormArgs& args) override {
    calls.emplace_back("norm");
    for (const ops::Taps& at : {args.delta_taps, args.x_taps[0], args.x_taps[1], args.out_taps}) {
      note(at, args.x.shape[0]);
    }
    if (on_norm) on_norm(*inner_, args);
    inner_->residual_norm(args);
  }
  void mix_streams(const ops::MixStreamsArgs& args) override {
    calls.emplace_back("mix");
    inner_->stream_ops()->mix_streams(args);
  }
  void sum_blocks(const ops::SumBlocksArgs& args) override {
    calls.emplace_back("sum");
    inner_->stream_ops()->sum_blocks(args);
  }
  void connect_streams(const ops::ConnectStreamsArgs& args) override {
    calls.emplace_back("connect");
    for (const ops::Taps& at : {args.post_taps, args.mix_taps}) note(at, args.x.shape[0]);
    inner_->stream_ops()->connect_streams(args);
  }
  void gate_streams(const ops::GateStreamsArgs& args) override {
    calls.emplace_back("gate");
    note(args.post_taps, args.x.shape[0]);
    inner_->stream_ops()->gate_streams(args);
  }
  void gated_act(const ops::GatedActArgs& args) override {
    calls.emplace_back("act");
    note(args.taps, args.x.shape[0]);
    inner_->gated_act(args);
  }
  void logits(const ops::LogitsArgs& args) override {
    calls.emplace_back("logits");
    inner_->logits(args);
  }

 private:
  void note(const ops::Taps& at, int64_t rows) {
    if (!at.empty()) taps.push_back({at.point, rows, at.batch->num_tokens()});
  }
};

constexpr int64_t kTokens = 5;

// A tiny model, a prompt of one sequence, and a table with nothing in it.
class DecoderCalls : public ::testing::Test {
 protected:
  void make(std::unique_ptr<ops::Ops> backend, const model::ModelSpec& spec) {
    auto recording = std::make_unique<RecordingOps>(std::move(backend));
    ops_ = recording.get();
    device_ = std::make_unique<testing::Device>(std::move(recording));
    spec_ = spec;
    weights_ = testing::random_weights(spec_, *ops_, 7).value();
    for (const model::LayerSpec& layer : spec_.layers) {
      const model::KvGeometry a = model::kv_geometry(layer);
      kv_.push_back(
          ops::make_kv_layer(
              *ops_, 2, {.num_kv_heads = a.num_kv_heads, .head_dim = a.head_dim, .parts = a.parts})
              .value());
    }
    decoder_ = model::Decoder::make(spec_, weights_, kv_, *ops_,
                                    {.max_tokens = 8, .max_logits_rows = 8, .max_seq_len = 32})
                   .value();
    geometry_ = model::tap_geometry(spec_, ops_->act_dtype());
    table_ = testing::put_tap_table(*device_, geometry_, {}, {}, 1, 64);
  }

  model::ForwardBatch batch(const std::vector<int32_t>& rows, bool has_taps) {
    const auto ints = [&](std::vector<int32_t> values) { return device_->put(values); };
    model::ForwardBatch batch{.ids = ints({3, 1, 4, 1, 5}),
                              .positions = ints({0, 1, 2, 3, 4}),
                              .kv_slot = ints({16, 17, 18, 19, 20}),
                              .attention = {.q_begin = ints({0, kTokens}),
                                            .kv_len = ints({kTokens}),
                                            .table_row = ints({0}),
                                            .block_table = device_->put_as<int32_t>(
                                                std::vector<int32_t>{1, 0}, DType::kI32, {1, 2}),
                                            .max_q_len = kTokens,
                                            .max_kv_len = kTokens},
                              .logits_rows = ints(rows)};
    if (has_taps) {
      batch.tap_table = &table_;
      batch.taps =
          testing::put_tap_batch(*device_, table_, std::vector<testing::TapToken>(kTokens));
      batch.rows_taps =
          testing::put_tap_batch(*device_, table_, std::vector<testing::TapToken>(rows.size()));
    }
    return batch;
  }
  std::vector<std::byte> run(const model::ForwardBatch& step) {
    ops_->calls.clear();
    ops_->taps.clear();
    const View logits = decoder_->forward(step);
    if (logits.empty()) return {};
    const testing::HostTensor host = device_->get(logits);
    return {host.bytes().begin(), host.bytes().end()};
  }

  std::vector<int32_t> all_points() const {
    std::vector<int32_t> points;
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t site = 0; site < tap::kNumSites; ++site) {
        const tap::Point point{layer, static_cast<tap::Site>(site)};
        if (geometry_.has(point)) points.push_back(point.index());
      }
    }
    return points;
  }
  std::vector<int32_t> tapped_points() const {
    std::vector<int32_t> points;
    for (const Tapped& tapped : ops_->taps) points.push_back(tapped.point);
    return points;
  }

  RecordingOps* ops_ = nullptr;
  std::unique_ptr<testing::Device> device_;
  model::ModelSpec spec_;
  model::Weights weights_;
  std::vector<ops::KvLayer> kv_;
  std::unique_ptr<model::Decoder> decoder_;
  tap::Geometry geometry_;
  ops::TapTable table_;
};

class DecoderTaps : public DecoderCalls, public ::testing::WithParamInterface<TinyArch> {
 protected:
  void make(std::unique_ptr<ops::Ops> backend) {
    DecoderCalls::make(std::move(backend), testing::tiny_spec(GetParam()));
  }
};

TEST_P(DecoderTaps, WithoutThemTheCallsArePlain) {
  make(cpu::make_reference_ops());
  run(batch({4}, false));
  std::vector<std::string> expected = {"embed"};
  const auto add = [&](const std::vector<std::string>& calls) {
    expected.insert(expected.end(), calls.begin(), calls.end());
  };
  // Of streams the branch has its norm, where there is one, and its scale; the first layer's scale
  // is between two ops of mixed streams.
  const bool has_streams = geometry_.residual.streams > 1;
  const bool is_mixed = geometry_.residual.kind == tap::ResidualKind::kMixedStreams;
  const std::string stream_op = is_mixed ? "mix" : "sum";
  std::vector<std::string> boundary;
  if (is_mixed) boundary.emplace_back("norm");
  if (has_streams) boundary.insert(boundary.end(), {"norm", stream_op});
  if (has_streams) add({"mix", stream_op});
  if (spec_.layers[0].norms.pre) add({"norm"});
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    add({"linear", "attention"});
    if (i + 1 == spec_.layers.size()) add({"gather", "gather"});
    add({"linear"});
    add(boundary);
    add({"norm", "linear", "act", "linear"});
    add(boundary);
    if (is_mixed && spec_.layers[i].has_scale) add({"norm", "mix"});
    add({"norm"});
  }
  add({"logits"});
  EXPECT_EQ(ops_->calls, expected);
  EXPECT_TRUE(ops_->taps.empty());
}

TEST_P(DecoderTaps, EveryPointIsNamedOnceInOrder) {
  make(cpu::make_reference_ops());
  for (const bool keep_all_rows : {false, true}) {
    model::ForwardBatch step = batch({1, 4}, true);
    step.keep_all_rows = keep_all_rows;
    run(step);
    EXPECT_EQ(tapped_points(), all_points());
    const tap::Point behind{geometry_.num_layers - 1, tap::Site::kAttnOut};
    for (const Tapped& tapped : ops_->taps) {
      EXPECT_EQ(tapped.num_rows, tapped.num_tokens) << tapped.point;
      const bool all = keep_all_rows || tapped.point < behind.index();
      EXPECT_EQ(tapped.num_rows, all ? kTokens : 2) << tapped.point;
    }
  }
}

// Numbers of streams are named between the branch that is written by them and the streams.
TEST_F(DecoderCalls, NumbersOfStreamsAreNamedOnceInOrder) {
  model::ModelSpec unmixed = testing::tiny_spec(TinyArch::kHyper);
  std::get<model::HyperConnections>(unmixed.residual).rule.iterations = 0;
  for (model::ModelSpec spec :
       {testing::tiny_spec(TinyArch::kHyper), unmixed, testing::tiny_spec(TinyArch::kDelayed),
        testing::tiny_spec(TinyArch::kGatedStreams)}) {
    SCOPED_TRACE(spec.architecture);
    spec.layers[1].mixer = spec.layers[0].mixer;
    kv_.clear();
    make(cpu::make_reference_ops(), spec);
    run(batch({1, 4}, true));
    EXPECT_EQ(tapped_points(), all_points());
    EXPECT_TRUE(geometry_.has({1, tap::Site::kAttnPostMix}));
    EXPECT_TRUE(geometry_.has({1, tap::Site::kAttnIn}));
    const auto* const hyper = std::get_if<model::HyperConnections>(&spec.residual);
    EXPECT_EQ(geometry_.has({1, tap::Site::kMlpResMix}),
              hyper != nullptr && hyper->rule.iterations > 0);
  }
}

TEST_P(DecoderTaps, OpsThatPassNothingOfTheStepArePlain) {
  make(cpu::make_reference_ops());
  std::vector<tap::PassageSet> sets;
  for (const tap::Passages kinds :
       {tap::kLayerEnd, tap::kLayerMiddle, tap::kActivation, tap::kMixerEnd,
        static_cast<tap::Passages>(tap::kLayerEnd | tap::kActivation)}) {
    sets.push_back(tap::PassageSet::all(kinds, geometry_.num_layers));
  }
  // Of some layers.
  for (const tap::Point point : {tap::Point{0, tap::Site::kResidPre},
                                 {0, tap::Site::kResidPost},
                                 {1, tap::Site::kMlpAct},
                                 {2, tap::Site::kFinalNorm}}) {
    tap::PassageSet& set = sets.emplace_back();
    set.add(point);
    set.add(tap::Point{1, tap::Site::kMlpIn});
  }
  for (const tap::PassageSet& set : sets) {
    model::ForwardBatch step = batch({4}, true);
    step.tapped = &set;
    run(step);
    std::vector<int32_t> expected = all_points();
    std::erase_if(expected, [&](int32_t point) {
      return !set.has({point / tap::kNumSites, static_cast<tap::Site>(point % tap::kNumSites)});
    });
    EXPECT_EQ(tapped_points(), expected);
  }
}

TEST_P(DecoderTaps, NothingInTheTableChangesNothing) {
  for (const bool is_low : {false, true}) {
    make(is_low ? testing::make_low_precision_ops() : cpu::make_reference_ops());
    for (const std::vector<int32_t>& rows :
         {std::vector<int32_t>{4}, {0, 3}, {0, 1, 2, 3, 4}, {}}) {
      const auto plain = run(batch(rows, false));
      EXPECT_EQ(plain.empty(), rows.empty());
      for (const bool keep_all_rows : {false, true}) {
        model::ForwardBatch step = batch(rows, true);
        step.keep_all_rows = keep_all_rows;
        EXPECT_EQ(run(step), plain) << rows.size() << " rows, all kept: " << keep_all_rows;
        EXPECT_EQ(tapped_points().size(),
                  rows.empty() && !keep_all_rows
                      ? all_points().size() - (geometry_.has({2, tap::Site::kMlpIn}) ? 7 : 6)
                      : all_points().size());
      }
      // Likewise where a step encodes, and none of these tokens does. Rows that a product takes as
      // F8E4M3 are rounded to act for it.
      model::ForwardBatch step = batch(rows, true);
      const std::vector<int32_t> points = all_points();
      step.encodes = points;
      const auto got = run(step);
      EXPECT_EQ(got.size(), plain.size());
      if (!is_low) {
        EXPECT_EQ(got, plain) << rows.size() << " rows, with encodes";
      }
    }
    kv_.clear();
  }
}

// A branch that reads its input in act, while its product takes quantised rows: one norm writes
// both, each as the norm that writes one form alone does.
TEST_F(DecoderCalls, OneNormWritesBothFormsOfARow) {
  model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  spec.layers[1].mixer = model::CustomMixer{testing::make_gated_values(64)};
  for (const bool is_low : {false, true}) {
    make(is_low ? testing::make_low_precision_ops() : cpu::make_reference_ops(), spec);
    const auto bytes_of = [&](const View& view) {
      const testing::HostTensor host = device_->get(view);
      return std::vector<std::byte>(host.bytes().begin(), host.bytes().end());
    };
    std::vector<View> written;                     // by the model
    std::vector<std::vector<std::byte>> expected;  // of the same
    const auto run_alone = [&](ops::Ops& inner, ops::ResidualNormArgs args, DType dtype) {
      const auto copied = [&](const View& view) { return device_->put(device_->get(view)); };
      args.x = copied(args.x);
      if (!args.delta.empty()) args.delta = copied(args.delta);
      args.out = inner.allocate(dtype, args.x.shape).value();
      args.out_act = {};
      if (dtype != DType::kF8E4M3) args.out_scale = {};
      if (!args.out_scale.empty()) args.out_scale = copied(args.out_scale);
      inner.residual_norm(args);
      expected.push_back(bytes_of(args.out));
      if (!args.out_scale.empty()) expected.push_back(bytes_of(args.out_scale));
    };
    bool is_done = false;  // with the first step
    ops_->on_norm = [&](ops::Ops& inner, const ops::ResidualNormArgs& args) {
      if (args.out_act.empty() || is_done) return;
      written = {args.out, args.out_scale, args.out_act};
      run_alone(inner, args, DType::kF8E4M3);
      run_alone(inner, args, DType::kBF16);
    };
    // The mixer checks them as it reads: nothing has overwritten them by then.
    std::vector<std::vector<std::byte>> got;
    ops_->on_linear = [&] {
      if (written.empty() || !got.empty()) return;
      for (const View& view : written) got.push_back(bytes_of(view));
    };
    const auto plain = run(batch({0, 4}, false));
    is_done = true;
    EXPECT_EQ(written.size(), is_low ? 3u : 0u);
    EXPECT_EQ(got, expected);
    EXPECT_EQ(run(batch({0, 4}, true)), plain);  // with taps that do nothing
    // The gate is read.
    const View gate = std::get<model::CustomMixer::Weights>(weights_.layers[1].mixer).vector;
    std::fill_n(gate.as<float>(), gate.num_rows(), 0.0f);
    EXPECT_NE(run(batch({0, 4}, false)), plain);
    kv_.clear();
  }
}

std::string name_of(const ::testing::TestParamInfo<TinyArch>& arch) {
  return std::string(testing::tiny_arch_name(arch.param));
}
// All of whose layers have a gated MLP: experts have calls of their own, and a site less.
std::vector<TinyArch> gated_archs() {
  std::vector<TinyArch> archs(std::begin(testing::kTinyArchs), std::end(testing::kTinyArchs));
  std::erase(archs, TinyArch::kExperts);
  return archs;
}
INSTANTIATE_TEST_SUITE_P(Archs, DecoderTaps, ::testing::ValuesIn(gated_archs()), name_of);
INSTANTIATE_TEST_SUITE_P(Streams, DecoderTaps,
                         ::testing::Values(TinyArch::kTwoStreams, TinyArch::kBlockSums), name_of);

}  // namespace
}  // namespace rudder::metamorphic
