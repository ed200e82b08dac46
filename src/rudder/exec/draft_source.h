// DraftSource: a proposer on the device (DraftCaps::guesses). Each has a file of its own
// (NAME_proposer.h): a draft model, a draft head, Medusa heads, an assistant, prompt lookup. The
// executor, its memory budget and its loader know this interface alone.
//
// A source has three lives. read_source() (draft_sources.h) makes it from its checkpoint's
// description: it says what it takes, and nothing of it is on a device. load() and shard() give it
// the weights of one rank; the thread that loads the rank's part of the model calls them. bind()
// gives it buffers beside the model's: the executor owns it from then on, and the executor's worker
// thread alone calls it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/guess_asks.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/spec.h"
#include "rudder/model/stage.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/ops/slot_args.h"
#include "rudder/step/draft_caps.h"
#include "rudder/step/executor.h"
#include "rudder/tensor/dtype.h"

namespace rudder::exec {

struct StepLimits;

// Rows that a source reads of the model's decoder, which keeps them for it.
struct RowsRead {
  // Of every token, beside its KV: rows that enter these layers of the whole model side by side,
  // or with `final_norm` the one behind the final norm; `width` numbers, 0: none are read.
  std::vector<int32_t> layers = {};
  bool final_norm = false;
  int64_t width = 0;
  // Of each row of a step's logits the one behind the final norm, until the next step.
  bool sampled = false;
};

// What of the executor a source runs beside. All of it outlives the source.
struct DraftSite {
  ops::Ops& ops;
  const step::Capacity& capacity;
  const model::ModelSpec& spec;      // of the device's part of the model
  const model::Weights& weights;     // likewise
  std::span<const ops::KvLayer> kv;  // likewise
  ops::View kept_rows = {};          // as HiddenPool.rows, where RowsRead.width is not 0
  ops::View sampled_rows = {};       // [max_logits_rows, hidden] act, where RowsRead.sampled
  ops::SlotState slots = {};         // of the model
  bool has_graphs = false;  // passes that come again are captured, where the device has graphs
};

// What a run of a source made that later runs find made.
struct Setup {
  bool captured = false;  // graphs
  // Its time has something that is paid once: a graph was captured, or a pass ran op by op, and
  // with it kernels were loaded, that runs from a graph when it comes again.
  bool is_paid_once = false;
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // What it is. None of these changes anything.

  // Says in `caps` how it guesses: all but how many drafts there may be and what the host does.
  virtual void describe(step::DraftCaps& caps) const = 0;
  // kUnsupported: what the backend lacks for it, or that it is not for a stage like this.
  virtual Result<void> check_device(ops::Ops& ops, const model::Stage& stage) const;
  // What it cannot guess for: `model` is the whole one, its sequences are in `groups` and have up
  // to `max_seq_len` tokens.
  virtual Result<void> check_model(const model::ModelSpec& model, const step::KvGroups& groups,
                                   int32_t max_seq_len) const;
  // Settles what the stages of the model, the last of which has it, bring there.
  virtual Result<void> join(std::vector<model::Stage>& stages) const;
  virtual RowsRead rows_read() const { return {}; }

  // Its bytes on a rank's device: of its weights, before they are loaded and while it is whole; of
  // what bind() allocates, and of the rows of RowsRead.sampled; of what it keeps of sequences
  // beside each block of `block_size` tokens, KV and the rows of RowsRead.width.
  virtual Result<int64_t> weight_bytes(ops::Ops& ops) const = 0;
  virtual int64_t device_bytes(const step::Capacity& capacity, tensor::DType act,
                               ops::Rank rank) const = 0;
  virtual Result<int64_t> block_bytes(const ops::KvFormat& kv, tensor::DType act,
                                      int32_t block_size) const;

  // Becomes the rank's part. An Error names what the ranks cannot divide.
  virtual Result<void> shard(ops::Rank rank) = 0;
  // Loads the rank's weights to `ops`, while it is whole. Its checkpoint may be closed afterwards.
  virtual Result<void> load(ops::Ops& ops) = 0;

  // Allocates what it runs in. An Error is the device's.
  virtual Result<void> bind(const DraftSite& site) = 0;
  // Where guesses stay in the slots (DraftCaps::keeps_guesses): what is a part of each step that
  // samples, behind its sample and in its graphs; then what is behind `step`, in the order of the
  // device, for asks of which the host does not know what was sampled. Neither waits for the
  // device; an Error is the device's.
  virtual void follow(const DeviceStep& /*step*/) {}
  virtual Result<Setup> enqueue(const DeviceStep& step, std::span<GuessAsk> asks);
  // Of trees: guesses behind a step whose tokens are on the host, and waits for the device. An
  // Error is the device's.
  virtual Result<Setup> run(std::span<GuessAsk> asks);
};

// The slots keep what counts of a step's tokens, and forget their last guesses: behind the sample
// of a step, where guesses stay in the slots.
void keep_tokens(ops::Ops& ops, const DeviceStep& step);

// Whether a source guesses as the capacity of its executor says.
bool guesses_as(const DraftSource& source, const step::DraftCaps& caps);

// The name by which errors of a source's checkpoint are found.
inline constexpr const char* kDraftWhere = "speculative-config.model";
tl::unexpected<Error> of_draft(const Error& error);

// kUnsupported: the backend has no ops of draft heads.
Result<void> check_runs_heads(ops::Ops& ops);
// That a model or assistant was made for sequences of so many tokens.
Result<void> check_positions(const model::ModelSpec& draft, int32_t max_seq_len);

}  // namespace rudder::exec
