// Ops: the macro-op interface between a model and a backend. There is one object for a device. One
// thread at a time uses it: the one that loads the model, then the executor's worker.
// Implementations: cpu/ (reference and fast), cuda/. Formulas: args.h. testing/ has an fp64
// reference and one conformance suite for every backend.
//
// make_* and the decoder check shapes once, so arguments are valid here: a backend CHECKs them and
// returns no errors for shapes. Rows are independent: the result of a row depends on neither the
// number of rows in the call nor the row's index among them, bit for bit (on the CPU always, on a
// GPU in its batch-invariant mode).
//
// A backend enqueues ops in order on the device's one stream. Only Event::wait waits for them. A
// backend keeps a device fault and returns it from status() and from every later Event::wait, with
// the op, its shapes and the stream. A CPU runs each op before the call returns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rudder/base/check.h"
#include "rudder/base/result.h"
#include "rudder/ops/args.h"
#include "rudder/ops/comm.h"
#include "rudder/ops/feature_args.h"
#include "rudder/ops/look_up_args.h"
#include "rudder/ops/message.h"
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
  // The dtype that make_linear stores, for the memory budget. A backend that keeps_fp8() stores
  // F8E4M3 parts as F8E4M3.
  virtual tensor::DType linear_dtype() const = 0;
  virtual bool keeps_fp8() const { return false; }
  // Whether begin_step() places sequences and sample() verifies drafts.
  virtual bool takes_drafts() const { return false; }
  // Whether drafts may be trees: attention() heeds AttentionBatch.ancestors, sample() follows
  // SampleRow.parent_up, and keep_paths() is there.
  virtual bool takes_trees() const { return false; }
  // Whether keep_paths() moves KeepPathsArgs.beside too, which trees need beside a draft head.
  virtual bool keeps_rows() const { return false; }
  // Whether look_up() is there, and begin_step() takes drafts from guesses of slots.
  virtual bool looks_up() const { return false; }
  // Ops of one thread that read what lies in this object's memory, beside its own ops and on
  // another thread: residual_norm, logits and score; and read_features on what it is given. Null
  // where the backend has none, or cannot open one.
  virtual bool has_reader() const { return false; }
  virtual std::unique_ptr<Ops> make_reader() const { return nullptr; }
  virtual int64_t reader_bytes() const { return 0; }  // of device memory, beside what it allocates

  // Whether place_rows(), spread_logits() and residual_act() are there, which draft heads need.
  virtual bool runs_draft_heads() const { return false; }

  // Whether encode() and read_features() are there.
  virtual bool has_encode() const { return false; }

  // Whether a reader's read_features() is to be used: a device that is the host itself would keep
  // dictionaries twice, and the host has code of its own for them.
  virtual bool reads_features() const { return false; }

  // Whether residual_norm() taps rows of any width, not of the residual alone: attn_z.
  virtual bool taps_mixers() const { return false; }

  // Whether the ranks of a group read each other's memory as their own. Then there are
  // tap_shares(), sum_ranks() and Comm::shared_memory(), a reader reads every rank's memory, and
  // what guesses has ranks as the model.
  virtual bool ranks_share_memory() const { return false; }

  // A number that changes while work is done, however little, and stays while none is: so who waits
  // for a long op knows that it goes on. Any thread. 0 where the backend does not tell.
  virtual uint64_t progress() const { return 0; }

  // Whether patterns() is there.
  virtual bool has_patterns() const { return false; }

  // The device's place among those that compute a model together; null: it is alone.
  virtual Comm* comm() { return nullptr; }

  // Bytes that may still be allocated, of the device and of this process; where ranks share a
  // memory, this rank's share of them.
  virtual int64_t available_memory() const = 0;

  // Memory of the device, 64-byte aligned, zeroed, alive as long as this object.
  virtual Result<View> allocate(tensor::DType dtype, tensor::Shape shape) = 0;
  // A copy of a host tensor on the device, converted to `dtype`.
  virtual Result<View> upload(const View& host, tensor::DType dtype) = 0;
  // Stacks the parts along `out` and packs them as this backend multiplies them.
  virtual Result<LinearWeight> make_linear(std::span<const LinearPart> parts) = 0;

  // Called once for each model, after all are loaded and before its first step: the backend chooses
  // its kernels and allocates their workspaces. An Error names a shape that the backend has no
  // kernel for.
  virtual Result<void> prepare(const StepBounds& /*bounds*/) { return {}; }

  // Tokens before the first that a row sees that attention may read beside it: their weight is 0,
  // but their KV must still be the sequence's own.
  virtual int32_t attention_lookback() const { return 0; }

  // Host memory from and to which copy_in and copy_out do not wait (pinned on a GPU); zeroed, alive
  // as long as this object.
  virtual Result<View> allocate_staging(int64_t bytes) = 0;  // [bytes] u8

  virtual void copy_in(const View& device, const View& staging) = 0;  // equal bytes
  virtual void copy_out(const View& staging, const View& device) = 0;

  // Enqueues copy_out after everything enqueued so far, and records `done` after the copy. A device
  // that can uses a second stream for the copy, so later ops do not wait for it; they must not
  // write `device` before `done`. Must not be captured into a graph.
  virtual void copy_out_aside(const View& staging, const View& device, Event& done) {
    copy_out(staging, device);
    record(done);
  }

  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Event& event) = 0;

  // Between the stages of a pipeline (message.h). post() says that a message of this device is
  // complete behind everything enqueued so far. What is enqueued behind await() runs behind what
  // the message's last post stands behind, which was enqueued before. copy() is between memory of
  // this device and that of a message, of equal bytes. None of them may be captured.
  virtual Result<std::unique_ptr<Message>> make_message(int64_t bytes) {
    return std::make_unique<HostMessage>(bytes);
  }
  virtual void post(Message& /*message*/) {}
  virtual void await(Message& /*message*/) {}
  virtual void copy(const View& to, const View& from) { copy_in(to, from); }

  virtual Result<void> status() = 0;

  // Ops between begin_capture and end_capture are recorded into a graph and not run. has_graphs is
  // false for a device without graphs.
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
  virtual void begin_attention(const AttentionBatch& batch) = 0;  // once a step, before attention()
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void keep_paths(const KeepPathsArgs& /*args*/) {
    RUDDER_CHECK(false, "{} takes no trees", name());
  }
  virtual void patterns(const PatternArgs& /*args*/) {
    RUDDER_CHECK(false, "{} captures no attention patterns", name());
  }
  // Once a step, behind its last patterns(): until then records may lack the sums of rows, and the
  // rows of other ranks.
  virtual void end_patterns(const EndPatternsArgs& /*args*/) {}
  virtual void gated_act(const GatedActArgs& args) = 0;
  virtual void quantise(const QuantiseArgs& args) = 0;
  virtual void gather_rows(const GatherRowsArgs& args) = 0;
  virtual void logits(const LogitsArgs& args) = 0;
  virtual void place_rows(const PlaceRowsArgs& /*args*/) {
    RUDDER_CHECK(false, "{} runs no draft heads", name());
  }
  virtual void spread_logits(const SpreadLogitsArgs& /*args*/) {
    RUDDER_CHECK(false, "{} runs no draft heads", name());
  }
  virtual void residual_act(const ResidualActArgs& /*args*/) {
    RUDDER_CHECK(false, "{} runs no draft heads", name());
  }
  // Of ranks alone.
  virtual void gather_logits(const GatherLogitsArgs& /*args*/) {
    RUDDER_CHECK(false, "{} is no rank of a group", name());
  }
  virtual void tap_shares(const TapSharesArgs& /*args*/) {
    RUDDER_CHECK(false, "{} taps no shares of rows", name());
  }
  // Puts the sum of what the ranks have in x in its place, as ResidualNormArgs.sums_ranks adds.
  virtual void sum_ranks(const View& /*x*/) {
    RUDDER_CHECK(false, "{} sums nothing but in residual_norm", name());
  }
  virtual void encode(const EncodeArgs& /*args*/) {
    RUDDER_CHECK(false, "{} encodes no dictionaries", name());
  }
  virtual void read_features(const ReadFeaturesArgs& /*args*/) {
    RUDDER_CHECK(false, "{} encodes no dictionaries", name());
  }
  virtual void sample(const SampleArgs& args) = 0;
  virtual void look_up(const LookUpArgs& /*args*/) {
    RUDDER_CHECK(false, "{} looks nothing up", name());
  }
  virtual void score(const ScoreArgs& args) = 0;
};

inline Rank rank_of(Ops& ops) {
  Comm* const comm = ops.comm();
  return comm == nullptr ? Rank{} : comm->rank();
}

}  // namespace rudder::ops
