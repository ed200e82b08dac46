// DeviceExecutor: step::Executor over one device. A worker thread packs each plan and enqueues all
// of its work on the device, sampling included, without waiting for it; collect() waits for the
// event that follows each iteration of a step and reads its tokens. The engine thread calls the
// public functions; the worker alone touches the model and the slots, and enqueues on the device.
// Of a step with constrained sequences it enqueues the forward pass, then waits for supply() and
// enqueues the rest.
//
// Captured rows leave the device behind the step's tokens, aside of the steps that follow, for host
// memory that whoever gets them leases. When none is free they are lost and reported so: no step
// waits for a reader.
//
// The device may run one stage of a pipeline (model/stage.h); then another DeviceExecutor runs the
// same plans on every other stage (pipeline_executor.h), and the last one alone samples, scores and
// gives captured rows. Its steps wait for other stages where handover.h says so.
//
// The device may be a rank of a group (ops/comm.h); then another DeviceExecutor runs the same plans
// on every other rank (wrap/group_executor.h), and rank 0 alone captures. A stage may be a group:
// then each of its ranks has a link of its own to the ranks of the same index.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/progress.h"
#include "rudder/base/queue.h"
#include "rudder/base/result.h"
#include "rudder/exec/adapter_table.h"
#include "rudder/exec/capture_pool.h"
#include "rudder/exec/device_time.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/flight_guesses.h"
#include "rudder/exec/graphs.h"
#include "rudder/exec/handover.h"
#include "rudder/exec/kv_layout.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/record_memory.h"
#include "rudder/exec/resident_model.h"
#include "rudder/exec/sample_step.h"
#include "rudder/exec/scorer.h"
#include "rudder/exec/slot_table.h"
#include "rudder/exec/state_memory.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/exec/tap_state.h"
#include "rudder/model/decoder.h"
#include "rudder/model/own_kv_decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class DeviceExecutor final : public step::Executor {
 public:
  // A loaded model and the device it lives on.
  struct Model {
    std::unique_ptr<ops::Ops> ops;
    model::ModelSpec spec;
    model::Weights weights;
    KvLayout kv;
    std::unique_ptr<AdapterTable> adapters = {};  // where the capacity has any
    std::unique_ptr<DraftSource> draft = {};      // where the capacity guesses, on the last stage
  };

  struct Options {
    bool enforce_eager = false;            // no graphs, also where the device has them
    ProgressFn capture_progress = {};      // of graphs
    std::shared_ptr<StageLink> link = {};  // between the stages, where the model's is not alone
    model::MakeOwnKvDecoder make_decoder = {};  // empty: Decoder::make, over KV of the device's
    NarrowRules narrow_graphs = {};
    std::string record_folder = {};  // of files, where the capacity's tiers have a disk
    HeldMemory* held = nullptr;      // is told what the executor holds (resident_model.h)
  };
  // `capacity` has the groups of the model's layout. Allocates the KV cache and every buffer of a
  // step, captures graphs, then starts the worker. An Error is the device's: out of memory.
  static Result<std::unique_ptr<DeviceExecutor>> start(Model model, const step::Capacity& capacity,
                                                       const Options& options);
  // Steps that have not been enqueued are dropped, the others waited for.
  ~DeviceExecutor() override { stop(); }

  step::Capacity capacity() const override;
  std::vector<step::StoredRecord> take_stored() override {
    return kept_.records == nullptr ? std::vector<step::StoredRecord>() : kept_.records->stored();
  }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;
  void stop() override;

 private:
  // The worker fills it, then it is the engine thread's until collected.
  struct Iteration {
    std::unique_ptr<ops::Event> done;
    Result<void> enqueued;
    int64_t start_us = 0;
    int64_t enqueued_us = 0;  // of one that is guessed behind: when it was done
  };
  // One step in flight. The worker is done with all but the later iterations when it hands over the
  // first.
  struct Flight {
    step::StepResult result;  // all but what an iteration sampled
    Setup setup;              // what of the step's time is paid once, but for its guesses
    int32_t repeat = 1;
    std::vector<int32_t> sampled_seq;
    std::vector<int32_t> num_logprobs;            // of each sampled row
    FlightGuesses guesses;                        // behind it
    std::vector<Iteration> iterations;            // as many as there may be
    Result<void> edited;                          // its edits of the tables
    std::vector<FilledLatches> filled;            // fetched with its first iteration
    DeviceStep step;                              // taps of ops that are enqueued point into it
    std::shared_ptr<tap::CapturedRows> captured;  // on its way
    std::unique_ptr<ops::Event> captured_out;
  };
  // What the device keeps between steps, besides slots.
  struct Kept {
    std::vector<ops::KvLayer> kv;
    SampleReaders readers;  // of what a step has sampled
    StateMemory states;
    std::unique_ptr<RecordMemory> records;  // behind them; null: there are no tiers
  };
  struct Enqueued {
    size_t flight = 0;
    int32_t iteration = 0;
  };

  DeviceExecutor(Model model, const step::Capacity& capacity);

  Result<void> prepare(const Options& options);
  void work();
  Result<void> prepare_taps();
  void pack(const step::StepPlan& plan, size_t index);
  Result<void> edit_tables(const step::StepPlan& plan);
  bool enqueue(size_t index);                             // false once it is stopping
  bool enqueue_failed(size_t index, const Error& error);  // as enqueue
  Result<Enqueued> next_enqueued();
  Result<void> await_done(ops::Event& done);
  Result<void> look();
  Result<void> begin(size_t index);
  Result<void> advance(size_t index);
  Result<void> pass_on(size_t index);
  void fail_others(const Error& error);
  void run(size_t index);
  void sample(size_t index, const ops::View& logits);
  ops::View run_forward(size_t index);
  Result<void> guess(size_t index);
  Result<void> await_guesses(FlightGuesses& guesses, bool was_done, step::StepResult& result);
  void fetch(size_t index, int32_t iteration);
  void fetch_captured(size_t index);
  Result<void> finish_captured(Flight& flight, step::StepResult& result);
  void read_sampled(const Enqueued& from, step::StepResult& result) const;

  const step::Capacity capacity_;
  Model model_;
  Kept kept_;                                // of sequences, by the model's layers
  std::unique_ptr<model::Decoder> decoder_;  // points into model_
  std::unique_ptr<TapState> taps_;           // likewise; none where the capacity has no taps
  std::unique_ptr<CapturePool> pool_;        // likewise; none without capture
  std::unique_ptr<StepBuffers> buffers_;     // likewise
  std::unique_ptr<Scorer> scorer_;           // likewise
  std::unique_ptr<Graphs> graphs_;           // likewise; none where every step runs op by op
  std::unique_ptr<Handover> handover_;       // likewise; none where one stage has all layers
  std::unique_ptr<DraftSource> source_;      // likewise; none where nothing guesses here
  const SteadyClock clock_;

  // The worker's; buffers keep their memory from step to step.
  SlotTable slots_;
  PackedStep packed_;
  int32_t next_iteration_ = 0;  // of the step at hand, to be handed over
  Result<void> broken_;         // an exception has left the state half changed: no step runs

  // Between the threads. Step i of the launched ones has entry i modulo their number.
  std::vector<Flight> flights_;
  BoundedQueue<std::shared_ptr<const step::StepPlan>> launched_;
  BoundedQueue<size_t> supplied_;  // flights whose masks are in their staging memory
  BoundedQueue<Enqueued> enqueued_;
  std::atomic<uint64_t> num_enqueued_ = 0;  // iterations
  std::atomic<bool> stopping_ = false;

  // The engine thread's.
  struct Launched {
    step::StepId id = 0;
    int32_t repeat = 1;
    bool is_nothing = false;  // it runs and copies nothing: it waits for a record's copy
  };
  int32_t masks_awaited_ = 0;       // of the last launched
  std::deque<Launched> in_flight_;  // of the first, `iteration_` have been collected
  int32_t iteration_ = 0;
  uint64_t num_launched_ = 0;   // steps
  uint64_t num_collected_ = 0;  // iterations
  step::StepId last_launched_ = 0;
  DeviceTime device_time_;
  std::optional<Error> fault_;  // of the device: nothing runs after it

  std::thread worker_;  // last: started when all else is ready
};

}  // namespace rudder::exec
