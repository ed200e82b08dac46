// ForwardingOps: what is common to devices made of another device: the macro-ops, each as a call
// that the maker runs, queues or records. Tests only.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "rudder/ops/ops.h"

namespace rudder::testing {

class ForwardingOps : public ops::Ops {
 public:
  tensor::DType act_dtype() const override { return inner_->act_dtype(); }
  tensor::DType kv_dtype() const override { return inner_->kv_dtype(); }
  tensor::DType linear_dtype() const override { return inner_->linear_dtype(); }
  bool keeps_fp8() const override { return inner_->keeps_fp8(); }
  int64_t available_memory() const override { return inner_->available_memory(); }

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
  void plan_attention(const ops::AttentionBatch& batch) override {
    run(&ops::Ops::plan_attention, batch);
  }
  void attention(const ops::AttentionArgs& args) override { run(&ops::Ops::attention, args); }
  void gated_act(const ops::GatedActArgs& args) override { run(&ops::Ops::gated_act, args); }
  void quantise(const ops::QuantiseArgs& args) override { run(&ops::Ops::quantise, args); }
  void gather_rows(const ops::GatherRowsArgs& args) override { run(&ops::Ops::gather_rows, args); }
  void logits(const ops::LogitsArgs& args) override { run(&ops::Ops::logits, args); }
  void sample(const ops::SampleArgs& args) override { run(&ops::Ops::sample, args); }

 protected:
  using Call = std::function<void(ops::Ops&)>;

  explicit ForwardingOps(std::unique_ptr<ops::Ops> inner) : inner_(std::move(inner)) {}
  virtual void forward(Call call) = 0;  // runs it on inner_, now or later

  const std::unique_ptr<ops::Ops> inner_;

 private:
  template <typename Args>
  void run(void (ops::Ops::*op)(const Args&), const Args& args) {
    forward([op, args](ops::Ops& ops) { (ops.*op)(args); });
  }
};

}  // namespace rudder::testing
