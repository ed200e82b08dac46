// RankExecutor: step::Executor over one device: a worker thread that packs each plan, runs the
// decoder, samples and keeps the slots. The engine thread calls the public functions; the worker
// alone touches the model, the slots and the device.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/queue.h"
#include "rudder/base/result.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/slot_table.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class RankExecutor final : public step::Executor {
 public:
  // A loaded model and the device it lives on.
  struct Model {
    std::unique_ptr<ops::Ops> ops;
    model::ModelSpec spec;
    model::Weights weights;
  };

  // Allocates the KV cache and every buffer of a step, then starts the worker. An Error is the
  // device's: out of memory.
  static Result<std::unique_ptr<step::Executor>> start(Model model, const step::Capacity& capacity);
  // Steps that have not begun are dropped; the one that runs is waited for.
  ~RankExecutor() override;

  step::Capacity capacity() const override { return capacity_; }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;

 private:
  RankExecutor(Model model, const step::Capacity& capacity);

  Result<void> allocate();
  void work();
  step::StepResult run(const step::StepPlan& plan);
  void sample(const ops::View& logits);
  void write_sampled(step::StepResult& result);

  const step::Capacity capacity_;
  Model model_;
  std::unique_ptr<model::Decoder> decoder_;  // points into model_
  const SteadyClock clock_;

  // The worker's; buffers keep their memory from step to step.
  SlotTable slots_;
  PackedStep packed_;
  std::vector<ops::SampleRow> sample_rows_;
  std::vector<int32_t> sampled_tokens_;
  std::vector<ops::SampleLogprobs> sampled_logprobs_;
  std::vector<std::pair<int32_t, float>> top_logprobs_;  // all rows' `top`, one after another

  // Between the threads.
  BoundedQueue<std::shared_ptr<const step::StepPlan>> launched_;
  BoundedQueue<step::StepResult> finished_;
  std::atomic<step::StepId> last_finished_ = 0;
  std::atomic<bool> stopping_ = false;

  // The engine thread's.
  step::StepId last_launched_ = 0;
  int32_t in_flight_ = 0;

  std::thread worker_;  // last: started when all else is ready
};

}  // namespace rudder::exec
