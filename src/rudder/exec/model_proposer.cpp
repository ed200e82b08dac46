#include "rudder/exec/model_proposer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;

constexpr const char* kWhere = "speculative-config.model";

// The first that keeps every token; their number: none does.
size_t whole_group(const step::KvGroups& groups) {
  const auto* found = std::ranges::find(groups, 0, &step::KvGroup::window);
  return static_cast<size_t>(found - groups.begin());
}

model::DecoderLimits limits_of(const step::Capacity& own) {
  return {.max_tokens = own.max_tokens_per_step,
          .max_logits_rows = own.num_slots,
          .max_seq_len = own.max_seq_len};
}

int32_t num_feedback_rows(const step::Capacity& own, const TreePasses& passes) {
  return own.num_slots * passes.num_feedback;
}

}  // namespace

// Of the draft model's own steps: a guess an iteration, or the passes of a tree, which have at
// least room for one sequence; and nothing that clients ask for.
step::Capacity ModelProposer::own_capacity(const step::Capacity& capacity, step::KvGroups groups) {
  const TreePasses passes(capacity.drafts.guess_tree);
  const bool has_tree = !capacity.drafts.guess_tree.empty();
  return {.num_slots = std::max(capacity.num_slots, passes.max_rows),
          .num_blocks = capacity.num_blocks,
          .block_size = capacity.block_size,
          .max_tokens_per_step = std::max(capacity.max_tokens_per_step, passes.max_tokens),
          .max_seq_len = capacity.max_seq_len,
          .vocab_size = capacity.vocab_size,
          .max_in_flight = kFlights,
          .max_repeat = has_tree ? 1 : std::max(capacity.drafts.max_draft, 1),
          .drafts = {.takes_trees = has_tree},
          .kv_groups = std::move(groups)};
}

Result<KvLayout> draft_kv_layout(const model::ModelSpec& spec, DType dtype, int32_t block_size) {
  // To sequences of one token no window means anything.
  RUDDER_TRY(KvLayout layout,
             make_kv_layout(spec, {.dtype = dtype, .block_size = block_size, .max_seq_len = 1}));
  if (layout.groups.size() == 1) return layout;
  return fail(ErrorCode::kUnsupported, "layers of a draft model that keep KV in several shapes",
              kWhere);
}

Result<void> check_draft_model(const model::ModelSpec& draft, const model::ModelSpec& model,
                               const step::KvGroups& groups, int32_t max_seq_len) {
  if (draft.vocab != model.vocab) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("it has {} tokens, the model {}", draft.vocab, model.vocab), kWhere);
  }
  if (model::keeps_states(draft)) {
    return fail(ErrorCode::kUnsupported, "layers of the draft model keep states of sequences",
                kWhere);
  }
  RUDDER_TRY_VOID(check_positions(draft, max_seq_len));
  if (whole_group(groups) == static_cast<size_t>(groups.size())) {
    return fail(ErrorCode::kUnsupported,
                "a draft model for a model of which every layer has a window", kWhere);
  }
  return {};
}

Result<void> check_positions(const model::ModelSpec& draft, int32_t max_seq_len) {
  if (draft.max_positions >= max_seq_len) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("it was made for {} positions, sequences have up to {}: see "
                          "--max-model-len",
                          draft.max_positions, max_seq_len),
              kWhere);
}

Result<void> check_runs_heads(ops::Ops& ops) {
  if (ops.draft_ops() != nullptr) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("the backend {} runs no draft heads yet", ops.name()),
              "speculative-config.method");
}

Result<model::HiddenPool> make_hidden_pool(const model::ModelSpec& model,
                                           const model::DraftHeadSpec* head, ops::Ops& ops,
                                           const step::Capacity& capacity) {
  model::HiddenPool pool;
  pool.layers = model.stage.aux_layers;
  if (head != nullptr) {
    const size_t group = whole_group(capacity.kv_groups);
    const int64_t num_rows = int64_t{capacity.num_blocks} * capacity.block_size;
    pool.layers = head->aux_layers;
    pool.final_norm = head->is_product();
    pool.group = static_cast<int32_t>(group);
    pool.block_size = capacity.block_size;
    pool.group_layers = capacity.kv_groups[group].layers;
    RUDDER_TRY(pool.rows, ops.allocate(ops.act_dtype(), {num_rows, head->aux_width()}));
  }
  if (model.stage.aux_layers.empty()) return pool;
  RUDDER_CHECK(pool.layers == model.stage.aux_layers);
  RUDDER_TRY(pool.passed,
             ops.allocate(ops.act_dtype(),
                          {std::ssize(pool.layers) * capacity.max_tokens_per_step, model.hidden}));
  return pool;
}

int64_t hidden_block_bytes(const model::DraftHeadSpec& head, DType act, int32_t block_size) {
  return head.aux_width() * block_size * static_cast<int64_t>(tensor::dtype_bytes(act));
}

ModelProposer::ModelProposer(DraftModel draft, ops::Ops& ops, const step::Capacity& capacity,
                             const step::Capacity& own)
    : draft_(std::move(draft)),
      ops_(ops),
      group_(whole_group(capacity.kv_groups)),
      capacity_(own),
      passes_(capacity.drafts.guess_tree),
      written_(static_cast<size_t>(own.num_slots)) {}

Result<std::unique_ptr<ModelProposer>> ModelProposer::make(DraftModel draft, ops::Ops& ops,
                                                           const step::Capacity& capacity,
                                                           bool has_graphs) {
  RUDDER_CHECK(draft.spec.vocab == capacity.vocab_size && capacity.drafts.guesses &&
               whole_group(capacity.kv_groups) < static_cast<size_t>(capacity.kv_groups.size()));
  RUDDER_CHECK(capacity.drafts.guess_tree == draft.tree.tree &&
               (capacity.drafts.guess_tree.empty() || model::runs_trees(draft.spec)));
  RUDDER_TRY(KvLayout layout, draft_kv_layout(draft.spec, ops.kv_dtype(), capacity.block_size));
  const step::Capacity own = own_capacity(capacity, layout.groups);
  std::unique_ptr<ModelProposer> proposer(new ModelProposer(std::move(draft), ops, capacity, own));
  RUDDER_TRY_VOID(proposer->prepare(std::move(layout), has_graphs));
  return proposer;
}

int64_t ModelProposer::device_bytes(const model::ModelSpec& spec, const model::DraftHeadSpec* head,
                                    const step::Capacity& capacity, DType act, ops::Rank rank) {
  const step::Capacity own = own_capacity(capacity, {});
  const int64_t workspace =
      head == nullptr
          ? model::Decoder::workspace_bytes(spec, limits_of(own), act, rank)
          : model::head_workspace_bytes(
                *head, limits_of(own),
                num_feedback_rows(own, TreePasses(capacity.drafts.guess_tree)), act, rank);
  return workspace + StepBuffers::device_bytes(own, StepBuffers::Counts::kNone);
}

Result<void> ModelProposer::prepare(KvLayout layout, bool has_graphs) {
  RUDDER_TRY(const std::vector<ops::KvLayer> kv, allocate_kv(layout, draft_.spec, capacity_, ops_));
  if (const std::optional<DraftHead>& head = draft_.head) {
    RUDDER_TRY(decoder_, model::make_head_decoder(head->spec, head->weights, head->source,
                                                  kv.front(), ops_, limits_of(capacity_),
                                                  num_feedback_rows(capacity_, passes_)));
  } else {
    RUDDER_TRY(decoder_,
               model::Decoder::make(draft_.spec, draft_.weights, kv, ops_, limits_of(capacity_)));
  }
  RUDDER_TRY(buffers_, StepBuffers::make(ops_, capacity_, nullptr, StepBuffers::Counts::kNone));
  done_ = ops_.make_event();
  if (has_graphs && ops_.graph_ops() != nullptr) {
    graphs_ = std::make_unique<PassGraphs>(ops_, *decoder_, capacity_);
  }
  return {};
}

Result<Setup> ModelProposer::run(std::span<GuessAsk> asks) {
  setup_ = {};
  RUDDER_TRY_VOID(run_tokens(asks));
  RUDDER_TRY_VOID(tree().tree.empty() ? guess_on(asks) : guess_trees(asks));
  return setup_;
}

void ModelProposer::clear() {
  packed_.clear();
  packed_.kv_slot.resize(1);
}

// In steps of as many tokens as the decoder takes. A sequence's last token gives its first guess.
Result<void> ModelProposer::run_tokens(std::span<GuessAsk> asks) {
  clear();
  first_guessed_.clear();
  for (GuessAsk& ask : asks) {
    std::span<const int32_t> rest = ask.tokens;
    if (ask.begin < shift() && !rest.empty()) rest = rest.subspan(1);
    if (rest.empty()) continue;
    open(ask);
    while (!rest.empty()) {
      if (packed_.num_tokens() == capacity_.max_tokens_per_step) {
        RUDDER_TRY_VOID(flush_tokens(false));
      }
      const auto room = static_cast<size_t>(capacity_.max_tokens_per_step - packed_.num_tokens());
      const auto taken = rest.first(std::min(rest.size(), room));
      add_tokens(ask, ask.end() - static_cast<int32_t>(rest.size()), taken);
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
Result<void> ModelProposer::flush_tokens(bool is_last) {
  if (packed_.num_tokens() == 0) return {};
  RUDDER_TRY_VOID(run_pass(kTokens, 1, first_guessed_.size()));
  if (is_last) return {};
  RUDDER_TRY_VOID(wait());
  read(kTokens, 0, first_guessed_);
  first_guessed_.clear();
  clear();
  return {};
}

// Enqueues what is packed, whose rows of logits are so many, and the copy of what it samples. In
// each iteration but the first the device goes on with the tokens of the one before.
Result<void> ModelProposer::run_pass(size_t flight, int32_t num_iterations, size_t num_rows) {
  RUDDER_CHECK(std::cmp_equal(packed_.num_sampled(), num_rows));
  const bool is_captured = graphs_ != nullptr && graphs_->pad(packed_, setup_);
  RUDDER_TRY(DeviceStep step, buffers_->begin(packed_, flight));
  if (is_captured) RUDDER_TRY_VOID(graphs_->capture(packed_, step, setup_));
  for (int32_t i = 0; i < num_iterations; ++i) {
    if (i > 0) buffers_->advance(step);
    if (is_captured) {
      graphs_->replay(packed_);
    } else {
      step.sample.logits = decoder_->forward(step.forward);
      if (num_rows > 0) ops_.sample(step.sample);
    }
    if (num_rows == 0) continue;
    buffers_->fetch(static_cast<int64_t>(num_rows), packed_.any_logprobs, flight, i);
  }
  return {};
}

// Each guess but the last gives the next one.
Result<void> ModelProposer::guess_on(std::span<GuessAsk> asks) {
  clear();
  guessed_.clear();
  int32_t longest = 0;
  for (GuessAsk& ask : asks) {
    if (ask.num_guess < 2 || ask.tokens.empty()) continue;
    const int32_t first_guess = -1 - ask.id.value;  // which the device has
    add_tokens(ask, ask.end(), {&first_guess, 1});
    guessed_.push_back({&ask, 1});
    add_sample_row(guessed_.back(), ask.id.value);
    longest = std::max(longest, ask.num_guess);
  }
  if (!guessed_.empty()) {
    packed_.guesses.goes_on_rows = packed_.guesses.feedback_rows;  // none but of a head
    RUDDER_TRY_VOID(run_pass(kGuesses, longest - 1, guessed_.size()));
  }
  RUDDER_TRY_VOID(wait());
  read(kTokens, 0, first_guessed_);
  for (int32_t i = 0; i + 1 < longest; ++i) read(kGuesses, i, guessed_);
  return {};
}

// The slot as if it were new, with the blocks that it has by now.
void ModelProposer::open(const GuessAsk& ask) {
  const int32_t row = ask.id.value;
  packed_.edits.opened.push_back({.slot = row, .has_counts = 0});
  Written& written = written_[static_cast<size_t>(row)];
  if (written.generation != ask.slot->generation) written = {ask.slot->generation, 0};
  const step::GroupTable& blocks = ask.slot->blocks[group_];
  for (; written.num_blocks < blocks.size(); ++written.num_blocks) {
    packed_.edits.blocks.push_back(
        {.row = row,
         .index = static_cast<int32_t>(written.num_blocks),
         .block = blocks[written.num_blocks] * capacity_.kv_groups[0].layers});
  }
}

void ModelProposer::add_tokens(const GuessAsk& ask, int32_t begin,
                               std::span<const int32_t> tokens) {
  int32_t position = begin - shift();
  for (const int32_t token : tokens) {
    packed_.ids.push_back(token);
    packed_.positions.push_back(position);
    add_kv_slot(ask, position++);
  }
  add_sequence(ask, static_cast<int32_t>(tokens.size()), position);
}

// Of the token that is added: its KV lies where the sequence has that of its token at `offset`.
void ModelProposer::add_kv_slot(const GuessAsk& ask, int32_t offset) {
  const int32_t size = capacity_.block_size;
  const step::BlockId block = ask.slot->blocks[group_][static_cast<size_t>(offset / size)];
  packed_.kv_slot[0].push_back(block * capacity_.kv_groups[0].layers * size + offset % size);
}

// Of the tokens that were added last.
void ModelProposer::add_sequence(const GuessAsk& ask, int32_t num_tokens, int32_t kv_len) {
  packed_.q_begin.push_back(static_cast<int32_t>(packed_.ids.size()));
  packed_.kv_len.push_back(kv_len);
  packed_.table_row.push_back(ask.id.value);
  if (packed_.ancestors.empty()) packed_.max_q_len = std::max(packed_.max_q_len, num_tokens);
  packed_.max_kv_len = std::max(packed_.max_kv_len, kv_len);
}

// Of the last token that was added. The device ends the sequence of a chain with its last guess.
void ModelProposer::add_sample_row(const Sampled& sampled, int32_t slot) {
  const GuessAsk& ask = *sampled.ask;
  ops::SampleRow row;
  row.slot = slot;
  row.temperature = 0;
  if (tree().tree.empty()) {
    row.position = ask.end() + sampled.row;
    row.max_len = ask.end() + ask.num_guess;
  } else {
    row.max_len = std::numeric_limits<int32_t>::max();
    row.num_logprobs = 1 + *std::ranges::max_element(tree().ranks);
    packed_.any_logprobs = true;
  }
  packed_.logits_rows.push_back(static_cast<int32_t>(packed_.ids.size()) - 1);
  packed_.sample_rows.push_back(row);
  if (draft_.head) packed_.guesses.feedback_rows.push_back(feedback_row(ask, sampled.row));
}

Result<void> ModelProposer::wait() {
  ops_.record(*done_);
  return done_->wait();
}

// Where nothing could be guessed, or no more, there is no token.
void ModelProposer::read(size_t flight, int32_t iteration, std::span<const Sampled> sampled) const {
  const ops::SampledToken* const rows = buffers_->sampled(flight, iteration);
  for (size_t i = 0; i < sampled.size(); ++i) {
    if (!tree().tree.empty()) {
      read_children(sampled[i], rows[i], buffers_->top(flight, iteration) + i * step::kMaxLogprobs);
    } else if (rows[i].token >= 0) {
      sampled[i].ask->guess.push_back(rows[i].token);
    }
  }
}

Result<std::unique_ptr<Proposer>> make_proposer(DraftModel draft, ops::Ops& ops,
                                                const step::Capacity& capacity,
                                                const StepRows& read, bool has_graphs) {
  if (draft.medusa) {
    return MedusaProposer::make(*std::move(draft.medusa), ops, capacity, read.final_rows);
  }
  if (draft.assistant) {
    return AssistantProposer::make(*std::move(draft.assistant), ops, capacity, read, has_graphs);
  }
  return ModelProposer::make(std::move(draft), ops, capacity, has_graphs);
}

}  // namespace rudder::exec
