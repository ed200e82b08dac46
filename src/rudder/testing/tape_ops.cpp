#include "rudder/testing/tape_ops.h"

#include <functional>
#include <utility>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::testing {
namespace {

using ops::View;
using tensor::DType;

struct Tape final : ops::Graph {
  std::vector<std::function<void(ops::Ops&)>> calls;
};

class TapeOps final : public ops::Ops {
 public:
  explicit TapeOps(std::unique_ptr<ops::Ops> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name() + "-tape"; }
  DType act_dtype() const override { return inner_->act_dtype(); }
  DType kv_dtype() const override { return inner_->kv_dtype(); }
  DType linear_dtype() const override { return inner_->linear_dtype(); }
  int64_t available_memory() const override { return inner_->available_memory(); }

  // Nothing of these is captured: memory is not given out, the host waits for nothing.
  Result<View> allocate(DType dtype, tensor::Shape shape) override {
    return outside_capture().allocate(dtype, shape);
  }
  Result<View> upload(const View& host, DType dtype) override {
    return outside_capture().upload(host, dtype);
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    return outside_capture().make_linear(parts);
  }
  Result<View> allocate_staging(int64_t bytes) override {
    return outside_capture().allocate_staging(bytes);
  }
  void copy_in(const View& device, const View& staging) override {
    outside_capture().copy_in(device, staging);
  }
  void copy_out(const View& staging, const View& device) override {
    outside_capture().copy_out(staging, device);
  }
  std::unique_ptr<ops::Event> make_event() override { return inner_->make_event(); }
  void record(ops::Event& event) override { outside_capture().record(event); }
  Result<void> status() override { return inner_->status(); }

  bool has_graphs() const override { return true; }
  void begin_capture() override {
    RUDDER_CHECK(tape_ == nullptr, "a capture is under way");
    tape_ = std::make_unique<Tape>();
  }
  Result<std::unique_ptr<ops::Graph>> end_capture() override {
    RUDDER_CHECK(tape_ != nullptr, "nothing is captured");
    return std::move(tape_);
  }
  void replay(ops::Graph& graph) override {
    for (const auto& call : static_cast<Tape&>(graph).calls) call(outside_capture());
  }

  void begin_step(const ops::BeginStepArgs& args) override { run(&ops::Ops::begin_step, args); }
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

 private:
  ops::Ops& outside_capture() {
    RUDDER_CHECK(tape_ == nullptr, "this cannot be captured");
    return *inner_;
  }

  template <typename Args>
  void run(void (ops::Ops::*op)(const Args&), const Args& args) {
    if (tape_ == nullptr) {
      (*inner_.*op)(args);
    } else {
      tape_->calls.push_back([op, args](ops::Ops& ops) { (ops.*op)(args); });
    }
  }

  const std::unique_ptr<ops::Ops> inner_;
  std::unique_ptr<Tape> tape_;  // while a capture is under way
};

}  // namespace

std::unique_ptr<ops::Ops> make_tape_ops(std::unique_ptr<ops::Ops> inner) {
  return std::make_unique<TapeOps>(std::move(inner));
}

}  // namespace rudder::testing
