#include "rudder/exec/pass_proposer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/kept_rows.h"

namespace rudder::exec {
namespace {

using tensor::DType;

model::DecoderLimits limits_of(const step::Capacity& own) {
  return {.max_tokens = own.max_tokens_per_step,
          .max_logits_rows = own.num_slots,
          .max_seq_len = own.max_seq_len};
}

int32_t num_feedback_rows(const step::Capacity& own, const TreePasses& passes) {
  return own.num_slots * passes.num_feedback;
}

}  // namespace

// Of the proposer's own steps: a guess an iteration, or the passes of a tree, which have at least
// room for one sequence; and nothing that clients ask for. What follows the slots runs a token more
// of each sequence than a step, and gives the host nothing.
step::Capacity PassProposer::own_capacity(const step::Capacity& capacity,
                                          step::KvGroups groups) const {
  const TreePasses passes(tree_.tree);
  const bool has_tree = !tree_.tree.empty();
  const bool keeps = capacity.drafts.keeps_guesses;
  const int32_t max_tokens = capacity.max_tokens_per_step + (keeps ? capacity.num_slots : 0);
  return {.num_slots = std::max(capacity.num_slots, passes.max_rows),
          .num_blocks = capacity.num_blocks,
          .block_size = capacity.block_size,
          .max_tokens_per_step = std::max(max_tokens, passes.max_tokens),
          .max_seq_len = capacity.max_seq_len,
          .vocab_size = capacity.vocab_size,
          .max_in_flight = keeps ? TailPasses::num_flights(capacity.max_in_flight) : kFlights,
          .max_repeat = 1,
          .drafts = {.takes_trees = has_tree},
          .kv_groups = groups};
}

Result<KvLayout> draft_kv_layout(const model::ModelSpec& spec, const ops::KvFormat& kv,
                                 int32_t block_size) {
  // To sequences of one token no window means anything.
  RUDDER_TRY(KvLayout layout,
             make_kv_layout(spec, {.kv = kv, .block_size = block_size, .max_seq_len = 1}));
  if (layout.groups.size() == 1) return layout;
  return fail(ErrorCode::kUnsupported, "layers of a draft model that keep KV in several shapes",
              kDraftWhere);
}

Result<void> check_draft_model(const model::ModelSpec& draft, const model::ModelSpec& model,
                               const step::KvGroups& groups, int32_t max_seq_len) {
  if (draft.vocab != model.vocab) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("it has {} tokens, the model {}", draft.vocab, model.vocab),
                kDraftWhere);
  }
  if (model::keeps_states(draft)) {
    return fail(ErrorCode::kUnsupported, "layers of the draft model keep states of sequences",
                kDraftWhere);
  }
  RUDDER_TRY_VOID(check_positions(draft, max_seq_len));
  if (whole_group(groups) == static_cast<size_t>(groups.size())) {
    return fail(ErrorCode::kUnsupported,
                "a draft model for a model of which every layer has a window", kDraftWhere);
  }
  return {};
}

Result<void> PassProposer::check_model(const model::ModelSpec& model, const step::KvGroups& groups,
                                       int32_t max_seq_len) const {
  return check_draft_model(layers(), model, groups, max_seq_len);
}

int64_t PassProposer::device_bytes(const step::Capacity& capacity, DType act,
                                   ops::Rank rank) const {
  const step::Capacity own = own_capacity(capacity, {});
  return decoder_bytes(limits_of(own), num_feedback_rows(own, TreePasses(tree_.tree)), act, rank) +
         StepBuffers::device_bytes(own, StepBuffers::Counts::kNone);
}

Result<int64_t> PassProposer::block_bytes(const ops::KvFormat& kv, DType act,
                                          int32_t block_size) const {
  RUDDER_TRY(const KvLayout layout, draft_kv_layout(layers(), kv, block_size));
  return layout.block_bytes +
         rows_read().width * block_size * static_cast<int64_t>(tensor::dtype_bytes(act));
}

Result<void> PassProposer::bind(const DraftSite& site) {
  const step::KvGroups& groups = site.capacity.kv_groups;
  const size_t group = whole_group(groups);
  RUDDER_CHECK(layers().vocab == site.capacity.vocab_size && !model::keeps_states(layers()) &&
               group < static_cast<size_t>(groups.size()));
  RUDDER_CHECK(tree_.tree.empty() || model::runs_trees(layers()));
  RUDDER_TRY(KvLayout layout,
             draft_kv_layout(layers(), site.ops.kv_format(), site.capacity.block_size));
  ops_ = &site.ops;
  capacity_ = own_capacity(site.capacity, layout.groups);
  passes_ = TreePasses(tree_.tree);
  packer_ = PassPacker(capacity_, group, shift());
  RUDDER_TRY(const KvMemory memory, allocate_kv(layout, layers(), capacity_, *ops_));
  const std::vector<ops::KvLayer>& kv = memory.layers;
  RUDDER_TRY(decoder_,
             make_decoder(site, kv, limits_of(capacity_), num_feedback_rows(capacity_, passes_)));
  RUDDER_TRY(buffers_, StepBuffers::make(*ops_, capacity_, nullptr, StepBuffers::Counts::kNone));
  done_ = ops_->make_event();
  if (site.has_graphs && ops_->graph_ops() != nullptr) {
    graphs_ = std::make_unique<Graphs>(*ops_, capacity_, bind_passes(*ops_, *decoder_, capacity_));
  }
  if (!tree_.tree.empty()) return {};
  RUDDER_CHECK(capacity_.num_slots == site.capacity.num_slots);
  const TailPasses::Parts parts = {*ops_, *decoder_, *buffers_, graphs_.get(), packer_};
  tails_ = std::make_unique<TailPasses>(parts, capacity_, site.slots, is_head());
  return {};
}

Result<Setup> PassProposer::enqueue(const DeviceStep& /*step*/, std::span<GuessAsk> asks) {
  return tails_->enqueue(asks);
}

Result<Setup> PassProposer::run(std::span<GuessAsk> asks) {
  setup_ = {};
  RUDDER_TRY_VOID(run_tokens(asks));
  RUDDER_TRY_VOID(guess_trees(asks));
  return setup_;
}

// In steps of as many tokens as the decoder takes. A sequence's last token gives its first guess.
Result<void> PassProposer::run_tokens(std::span<GuessAsk> asks) {
  packer_.clear();
  first_guessed_.clear();
  for (GuessAsk& ask : asks) {
    std::span<const int32_t> rest = ask.tokens;
    if (ask.begin < shift() && !rest.empty()) rest = rest.subspan(1);
    if (rest.empty()) continue;
    packer_.open(ask);
    while (!rest.empty()) {
      if (packer_.packed.num_tokens() == capacity_.max_tokens_per_step) {
        RUDDER_TRY_VOID(flush_tokens(false));
      }
      const auto room =
          static_cast<size_t>(capacity_.max_tokens_per_step - packer_.packed.num_tokens());
      const auto taken = rest.first(std::min(rest.size(), room));
      packer_.add_tokens(ask, ask.end() - static_cast<int32_t>(rest.size()), taken);
      rest = rest.subspan(taken.size());
    }
    if (ask.num_guess > 0) {
      first_guessed_.push_back({&ask});
      add_sample_row(first_guessed_.back(), ask.id.value);
    }
  }
  return flush_tokens(true);
}

// Runs the step that is packed. The last one goes on while guesses are enqueued behind it.
Result<void> PassProposer::flush_tokens(bool is_last) {
  if (packer_.packed.num_tokens() == 0) return {};
  RUDDER_TRY_VOID(run_pass(kTokens, first_guessed_.size()));
  if (is_last) return {};
  RUDDER_TRY_VOID(wait());
  read(kTokens, first_guessed_);
  first_guessed_.clear();
  packer_.clear();
  return {};
}

// Enqueues what is packed, whose rows of logits are so many, and the copy of what it samples.
Result<void> PassProposer::run_pass(size_t flight, size_t num_rows) {
  RUDDER_CHECK(std::cmp_equal(packer_.packed.num_sampled(), num_rows));
  const bool is_captured = graphs_ != nullptr && graphs_->pad(packer_.packed, setup_);
  RUDDER_TRY(DeviceStep step, buffers_->begin(packer_.packed, flight));
  if (is_captured) RUDDER_TRY_VOID(graphs_->capture(step, setup_));
  run_packed(*ops_, *decoder_, is_captured ? graphs_.get() : nullptr, step);
  if (num_rows == 0) return {};
  buffers_->fetch(static_cast<int64_t>(num_rows), packer_.packed.any_logprobs, flight, 0);
  return {};
}

// Of the last token that was added.
void PassProposer::add_sample_row(const Sampled& sampled, int32_t slot) {
  ops::SampleRow row;
  row.slot = slot;
  row.temperature = 0;
  row.max_len = std::numeric_limits<int32_t>::max();
  row.num_logprobs = 1 + *std::ranges::max_element(tree_.ranks);
  packer_.packed.any_logprobs = true;
  packer_.packed.logits_rows.push_back(static_cast<int32_t>(packer_.packed.ids.size()) - 1);
  packer_.packed.sample_rows.push_back(row);
  if (!is_head()) return;
  packer_.packed.guesses.feedback_rows.push_back(feedback_row(*sampled.ask, sampled.row));
}

Result<void> PassProposer::wait() {
  ops_->record(*done_);
  return done_->wait();
}

void PassProposer::read(size_t flight, std::span<const Sampled> sampled) const {
  const ops::SampledToken* const rows = buffers_->sampled(flight, 0);
  const ops::TopLogprob* const top = buffers_->top(flight, 0);
  for (size_t i = 0; i < sampled.size(); ++i) {
    read_children(sampled[i], rows[i], top + i * step::kMaxLogprobs);
  }
}

}  // namespace rudder::exec
