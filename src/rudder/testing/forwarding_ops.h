// ForwardingOps: the base of test devices that wrap another device: it turns each macro-op into a
// call that the subclass runs, queues or records. Tests only.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "rudder/ops/ops.h"

namespace rudder::testing {

class ForwardingOps : public ops::Ops,
                      public ops::TreeOps,
                      public ops::DraftOps,
                      public ops::FeatureOps,
                      public ops::PatternOps,
                      public ops::StreamOps,
                      public ops::ExpertOps,
                      public ops::RouterTapOps,
                      public ops::StateOps,
                      public ops::LatentOps,
                      public ops::AdapterOps,
                      public ops::RankOps {
 public:
  tensor::DType act_dtype() const override { return inner_->act_dtype(); }
  ops::KvFormat kv_format() const override { return inner_->kv_format(); }
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override {
    return inner_->stored_format(file);
  }
  Result<ops::WeightFormat> format_for(const ops::WeightFormat& file,
                                       ops::ProductUse use) const override {
    return inner_->format_for(file, use);
  }
  int32_t attention_lookback() const override { return inner_->attention_lookback(); }
  ops::TreeOps* tree_ops() override { return this_if<ops::TreeOps>(inner_->tree_ops(), this); }
  ops::DraftOps* draft_ops() override { return this_if<ops::DraftOps>(inner_->draft_ops(), this); }
  ops::FeatureOps* feature_ops() override {
    return this_if<ops::FeatureOps>(inner_->feature_ops(), this);
  }
  ops::PatternOps* pattern_ops() override {
    return this_if<ops::PatternOps>(inner_->pattern_ops(), this);
  }
  ops::StreamOps* stream_ops() override {
    return this_if<ops::StreamOps>(inner_->stream_ops(), this);
  }
  ops::ExpertOps* expert_ops() override {
    return this_if<ops::ExpertOps>(inner_->expert_ops(), this);
  }
  ops::RouterTapOps* router_taps() override {
    return this_if<ops::RouterTapOps>(ops::router_taps_of(inner_->expert_ops()), this);
  }
  ops::LatentOps* latent_ops() override {
    return this_if<ops::LatentOps>(ops::latent_ops_of(inner_->state_ops()), this);
  }
  ops::StateOps* state_ops() override { return this_if<ops::StateOps>(inner_->state_ops(), this); }
  ops::StateLimits state_limits() const override { return inner_->state_ops()->state_limits(); }
  Result<ops::LinearWeight> make_experts(std::span<const ops::LinearPart> parts,
                                         int64_t experts) override {
    return inner_->expert_ops()->make_experts(parts, experts);
  }
  ops::AdapterOps* adapter_ops() override {
    return this_if<ops::AdapterOps>(inner_->adapter_ops(), this);
  }
  ops::RankOps* rank_ops() override { return this_if<ops::RankOps>(inner_->rank_ops(), this); }
  bool is_host() const override { return inner_->is_host(); }
  uint64_t progress() const override { return inner_->progress(); }
  int64_t available_memory() const override { return inner_->available_memory(); }
  ops::Comm* comm() override { return ops::comm_of(*inner_); }
  Result<void> prepare(const ops::StepBounds& bounds) override { return inner_->prepare(bounds); }

  // As one of the device's ops, where the device is such a wrapper; else at once.
  static void run_on(ops::Ops& device, const std::function<void()>& host_op) {
    if (auto* const wrapper = dynamic_cast<ForwardingOps*>(&device)) {
      wrapper->forward([host_op](ops::Ops& inner) { run_on(inner, host_op); });
    } else {
      host_op();
    }
  }

  void begin_step(const ops::BeginStepArgs& args) override { run(&ops::Ops::begin_step, args); }
  void advance_step(const ops::AdvanceStepArgs& args) override {
    run(&ops::Ops::advance_step, args);
  }
  void embed(const ops::EmbedArgs& args) override { run(&ops::Ops::embed, args); }
  void residual_norm(const ops::ResidualNormArgs& args) override {
    run(&ops::Ops::residual_norm, args);
  }
  void linear(const ops::LinearArgs& args) override { run(&ops::Ops::linear, args); }
  void qkv_prep(const ops::QkvPrepArgs& args) override { run(&ops::Ops::qkv_prep, args); }
  void begin_attention(const ops::AttentionBatch& batch) override {
    run(&ops::Ops::begin_attention, batch);
  }
  void attention(const ops::AttentionArgs& args) override { run(&ops::Ops::attention, args); }
  void keep_paths(const ops::KeepPathsArgs& args) override {
    run(&ops::Ops::tree_ops, &ops::TreeOps::keep_paths, args);
  }
  void patterns(const ops::PatternArgs& args) override {
    run(&ops::Ops::pattern_ops, &ops::PatternOps::patterns, args);
  }
  void end_patterns(const ops::EndPatternsArgs& args) override {
    run(&ops::Ops::pattern_ops, &ops::PatternOps::end_patterns, args);
  }
  void mix_streams(const ops::MixStreamsArgs& args) override {
    run(&ops::Ops::stream_ops, &ops::StreamOps::mix_streams, args);
  }
  void sum_blocks(const ops::SumBlocksArgs& args) override {
    run(&ops::Ops::stream_ops, &ops::StreamOps::sum_blocks, args);
  }
  void scale_add(const ops::ScaleAddArgs& args) override {
    run(&ops::Ops::stream_ops, &ops::StreamOps::scale_add, args);
  }
  void gate_streams(const ops::GateStreamsArgs& args) override {
    run(&ops::Ops::stream_ops, &ops::StreamOps::gate_streams, args);
  }
  void connect_streams(const ops::ConnectStreamsArgs& args) override {
    run(&ops::Ops::stream_ops, &ops::StreamOps::connect_streams, args);
  }
  void route(const ops::RouteArgs& args) override {
    run(&ops::Ops::expert_ops, &ops::ExpertOps::route, args);
  }
  void route_tapped(const ops::RouteTappedArgs& args) override {
    forward([args](ops::Ops& ops) { ops.expert_ops()->router_taps()->route_tapped(args); });
  }
  void expert_linear(const ops::ExpertLinearArgs& args) override {
    run(&ops::Ops::expert_ops, &ops::ExpertOps::expert_linear, args);
  }
  void combine_experts(const ops::CombineExpertsArgs& args) override {
    run(&ops::Ops::expert_ops, &ops::ExpertOps::combine_experts, args);
  }
  void convolve(const ops::ConvolveArgs& args) override {
    run(&ops::Ops::state_ops, &ops::StateOps::convolve, args);
  }
  void recur(const ops::RecurArgs& args) override {
    run(&ops::Ops::state_ops, &ops::StateOps::recur, args);
  }
  void gate_rows(const ops::GateRowsArgs& args) override {
    run(&ops::Ops::state_ops, &ops::StateOps::gate_rows, args);
  }
  void latent_prep(const ops::LatentPrepArgs& args) override {
    forward([args](ops::Ops& ops) { ops.state_ops()->latent_ops()->latent_prep(args); });
  }
  void latent_values(const ops::LatentValuesArgs& args) override {
    forward([args](ops::Ops& ops) { ops.state_ops()->latent_ops()->latent_values(args); });
  }
  void shrink_adapters(const ops::AdaptArgs& args) override {
    run(&ops::Ops::adapter_ops, &ops::AdapterOps::shrink_adapters, args);
  }
  void expand_adapters(const ops::AdaptArgs& args) override {
    run(&ops::Ops::adapter_ops, &ops::AdapterOps::expand_adapters, args);
  }
  void gated_act(const ops::GatedActArgs& args) override { run(&ops::Ops::gated_act, args); }
  void quantise(const ops::QuantiseArgs& args) override { run(&ops::Ops::quantise, args); }
  void gather_rows(const ops::GatherRowsArgs& args) override { run(&ops::Ops::gather_rows, args); }
  void place_rows(const ops::PlaceRowsArgs& args) override {
    run(&ops::Ops::draft_ops, &ops::DraftOps::place_rows, args);
  }
  void spread_logits(const ops::SpreadLogitsArgs& args) override {
    run(&ops::Ops::draft_ops, &ops::DraftOps::spread_logits, args);
  }
  void residual_act(const ops::ResidualActArgs& args) override {
    run(&ops::Ops::draft_ops, &ops::DraftOps::residual_act, args);
  }
  void logits(const ops::LogitsArgs& args) override { run(&ops::Ops::logits, args); }
  void gather_logits(const ops::GatherLogitsArgs& args) override {
    run(&ops::Ops::rank_ops, &ops::RankOps::gather_logits, args);
  }
  void tap_shares(const ops::TapSharesArgs& args) override {
    run(&ops::Ops::rank_ops, &ops::RankOps::tap_shares, args);
  }
  void sum_ranks(const ops::View& x) override {
    run(&ops::Ops::rank_ops, &ops::RankOps::sum_ranks, x);
  }
  void encode(const ops::EncodeArgs& args) override {
    run(&ops::Ops::feature_ops, &ops::FeatureOps::encode, args);
  }
  void read_features(const ops::ReadFeaturesArgs& args) override {
    run(&ops::Ops::feature_ops, &ops::FeatureOps::read_features, args);
  }
  void sample(const ops::SampleArgs& args) override { run(&ops::Ops::sample, args); }
  void look_up(const ops::LookUpArgs& args) override {
    run(&ops::Ops::draft_ops, &ops::DraftOps::look_up, args);
  }
  void place_tails(const ops::PlaceTailsArgs& args) override {
    run(&ops::Ops::draft_ops, &ops::DraftOps::place_tails, args);
  }
  void keep_guess(const ops::KeepGuessArgs& args) override {
    run(&ops::Ops::draft_ops, &ops::DraftOps::keep_guess, args);
  }
  void score(const ops::ScoreArgs& args) override { run(&ops::Ops::score, args); }

 protected:
  using Call = std::function<void(ops::Ops&)>;

  explicit ForwardingOps(std::unique_ptr<ops::Ops> inner) : inner_(std::move(inner)) {}
  virtual void forward(Call call) = 0;  // runs it on inner_, now or later

  // `own` where the inner device has the facet too.
  template <typename Facet>
  static Facet* this_if(const Facet* inner, Facet* own) {
    return inner == nullptr ? nullptr : own;
  }

  const std::unique_ptr<ops::Ops> inner_;

 private:
  template <typename Args>
  void run(void (ops::Ops::*op)(const Args&), const Args& args) {
    forward([op, args](ops::Ops& ops) { (ops.*op)(args); });
  }
  template <typename Facet, typename Args>
  void run(Facet* (ops::Ops::*facet)(), void (Facet::*op)(const Args&), const Args& args) {
    forward([facet, op, args](ops::Ops& ops) { ((ops.*facet)()->*op)(args); });
  }
};

// Passes every call on at once: for devices that change or note single ones.
class PassingOps : public ForwardingOps {
 public:
  std::string name() const override { return inner_->name(); }
  Result<ops::View> allocate(tensor::DType dtype, tensor::Shape shape) override {
    return inner_->allocate(dtype, shape);
  }
  Result<ops::View> upload(const ops::View& host, tensor::DType dtype) override {
    return inner_->upload(host, dtype);
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    return inner_->make_linear(parts);
  }
  Result<ops::View> allocate_staging(int64_t bytes) override {
    return inner_->allocate_staging(bytes);
  }
  void copy_in(const ops::View& device, const ops::View& staging) override {
    inner_->copy_in(device, staging);
  }
  void copy_out(const ops::View& staging, const ops::View& device) override {
    inner_->copy_out(staging, device);
  }
  std::unique_ptr<ops::Event> make_event() override { return inner_->make_event(); }
  void record(ops::Event& event) override { inner_->record(event); }
  Result<std::unique_ptr<ops::Message>> make_message(int64_t bytes) override {
    return inner_->make_message(bytes);
  }
  void post(ops::Message& message) override { inner_->post(message); }
  void await(ops::Message& message) override { inner_->await(message); }
  void copy(const ops::View& to, const ops::View& from) override { inner_->copy(to, from); }
  Result<void> status() override { return inner_->status(); }
  ops::GraphOps* graph_ops() override { return inner_->graph_ops(); }

 protected:
  using ForwardingOps::ForwardingOps;

 private:
  void forward(Call call) override { call(*inner_); }
};

}  // namespace rudder::testing
