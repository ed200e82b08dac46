// Ops: the macro-op interface, the seam between a model and a backend. One object a device, used by
// one thread. Implementations: cpu/ (reference and fast), cuda/. Formulas: args.h; a fp64 reference
// and one conformance suite for every backend: testing/.
//
// Arguments are valid when they get here (make_* and the decoder check shapes once): a backend
// CHECKs, it does not return errors for shapes. Rows are independent: a row's result depends on
// neither the number of rows in the call nor its place among them, bit for bit (the CPU always, the
// GPU in its batch-invariant mode).
//
// Ops are enqueued in order on the device's one stream and nothing here waits for them, but
// Event::wait. A device fault is kept and comes out of status() and of every later Event::wait,
// with the op, its shapes and the stream. A CPU runs each op before it returns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rudder/base/result.h"
#include "rudder/ops/args.h"
#include "rudder/ops/sample_args.h"
#include "rudder/ops/score_args.h"
#include "rudder/ops/slot_args.h"
#include "rudder/ops/stream.h"

namespace rudder::ops {

class Ops {
 public:
  virtual ~Ops() = default;

  virtual std::string name() const = 0;  // "cpu-reference", "cpu-amx", ...
  virtual tensor::DType act_dtype() const = 0;
  virtual tensor::DType kv_dtype() const = 0;
  // Of what make_linear stores, for memory planning; but F8E4M3 parts stay F8E4M3 where the backend
  // multiplies them as they are.
  virtual tensor::DType linear_dtype() const = 0;
  virtual bool keeps_fp8() const { return false; }

  // Bytes that may still be allocated, of the device and of this process.
  virtual int64_t available_memory() const = 0;

  // Memory of the device, 64-byte aligned, zeroed, alive as long as this object.
  virtual Result<View> allocate(tensor::DType dtype, tensor::Shape shape) = 0;
  // A copy of a host tensor on the device, converted to `dtype`.
  virtual Result<View> upload(const View& host, tensor::DType dtype) = 0;
  // Stacks the parts along `out` and packs them as this backend multiplies them.
  virtual Result<LinearWeight> make_linear(std::span<const LinearPart> parts) = 0;

  // Told once, when a model is loaded and before its first step, so that a backend can settle its
  // kernels and make room for them. An Error names a shape that it has no kernel for. A backend
  // that takes every shape has nothing to do.
  virtual Result<void> prepare(const StepBounds& /*bounds*/) { return {}; }

  // Host memory that copy_in and copy_out reach without a wait; zeroed, alive as long as this
  // object.
  virtual Result<View> allocate_staging(int64_t bytes) = 0;  // [bytes] u8

  virtual void copy_in(const View& device, const View& staging) = 0;  // equal bytes
  virtual void copy_out(const View& staging, const View& device) = 0;

  // copy_out behind everything enqueued so far, `done` recorded behind the copy. A device that can
  // copies on a stream of its own, so that later ops need not wait: until `done`, they must leave
  // `device` alone. Not to be captured.
  virtual void copy_out_aside(const View& staging, const View& device, Event& done) {
    copy_out(staging, device);
    record(done);
  }

  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Event& event) = 0;
  virtual Result<void> status() = 0;

  // Graphs: ops between the two are recorded, not run. False where a device has none.
  virtual bool has_graphs() const = 0;
  virtual void begin_capture() = 0;
  virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
  virtual void replay(Graph& graph) = 0;

  virtual void begin_step(const BeginStepArgs& args) = 0;
  virtual void advance_step(const AdvanceStepArgs& args) = 0;
  virtual void embed(const EmbedArgs& args) = 0;
  virtual void residual_norm(const ResidualNormArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void qkv_prep(const QkvPrepArgs& args) = 0;
  virtual void plan_attention(const AttentionBatch& batch) = 0;  // once a step, before attention()
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void gated_act(const GatedActArgs& args) = 0;
  virtual void quantise(const QuantiseArgs& args) = 0;
  virtual void gather_rows(const GatherRowsArgs& args) = 0;
  virtual void logits(const LogitsArgs& args) = 0;
  virtual void sample(const SampleArgs& args) = 0;
  virtual void score(const ScoreArgs& args) = 0;
};

}  // namespace rudder::ops
