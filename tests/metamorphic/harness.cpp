#include "metamorphic/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <span>
#include <stdexcept>

#include "metamorphic/guessers.h"
#include "metamorphic/tap_tables.h"
#include "rudder/base/token_mask.h"
#include "rudder/exec/head_proposer.h"
#include "rudder/exec/look_up_proposer.h"
#include "rudder/exec/medusa_proposer.h"
#include "rudder/exec/model_proposer.h"
#include "rudder/steer/capture/consumer.h"

namespace rudder::metamorphic {

void give_states(step::Capacity& capacity, const model::ModelSpec& whole) {
  if (!model::keeps_states(whole) || !capacity.states.empty()) return;
  capacity.states = {.count = 3 * capacity.num_slots,
                     .bytes = exec::StateMemory::state_bytes(whole),
                     .checkpoint_blocks = 1};
}

Result<std::unique_ptr<exec::DeviceExecutor>> start_executor(
    exec::DeviceExecutor::Model model, step::Capacity capacity,
    const exec::DeviceExecutor::Options& options) {
  RUDDER_TRY(model.kv,
             exec::make_kv_layout(model.spec, {.kv = model.ops->kv_format(),
                                               .block_size = capacity.block_size,
                                               .max_seq_len = capacity.max_seq_len,
                                               .lookback = model.ops->attention_lookback()}));
  capacity.kv_groups = model.kv.groups;
  capacity.num_blocks *= model.kv.groups.size();
  give_states(capacity, model.spec);
  if (capacity.drafts.keeps_guesses && model.draft == nullptr) {
    model.draft = exec::LookUpProposer::of(capacity.drafts.look_up);
  }
  return exec::DeviceExecutor::start(std::move(model), capacity, options);
}

// A tiny model on a backend of its own, without KV.
static exec::DeviceExecutor::Model tiny_model(const Backend& backend, testing::TinyArch arch) {
  exec::DeviceExecutor::Model model;
  model.ops = backend.make();
  model.spec = testing::tiny_spec(arch);
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  return model;
}

std::unique_ptr<exec::DeviceExecutor> tiny_executor(const Backend& backend, testing::TinyArch arch,
                                                    const step::Capacity& capacity,
                                                    const exec::DeviceExecutor::Options& options) {
  exec::DeviceExecutor::Model model = tiny_model(backend, arch);
  return value_of(start_executor(std::move(model), capacity, options));
}

std::unique_ptr<exec::DeviceExecutor> guessing_executor(
    const Backend& backend, testing::TinyArch arch, testing::TinyArch draft_arch,
    uint64_t draft_seed, step::Capacity capacity, const step::RankedTree& tree) {
  exec::DeviceExecutor::Model model = tiny_model(backend, arch);
  const model::ModelSpec draft = testing::tiny_spec(draft_arch);
  model.draft = std::make_unique<exec::ModelProposer>(
      draft, value_of(testing::random_weights(draft, *model.ops, draft_seed)), tree);
  capacity.drafts.guesses = true;
  capacity.drafts.keeps_guesses = true;
  add_tree(capacity, tree);
  return value_of(start_executor(std::move(model), capacity));
}

std::unique_ptr<exec::DeviceExecutor> head_executor(const Backend& backend, testing::TinyArch arch,
                                                    testing::TinyHead kind, step::Capacity capacity,
                                                    const step::RankedTree& tree) {
  exec::DeviceExecutor::Model model = tiny_model(backend, arch);
  model::DraftHeadSpec head = testing::tiny_head_spec(kind);
  EXPECT_TRUE(model::fit_draft_head(model.spec, head));
  model.draft = std::make_unique<exec::HeadProposer>(
      head, value_of(testing::random_head_weights(head, *model.ops, 11)), tree);
  capacity.drafts.guesses = true;
  capacity.drafts.keeps_guesses = true;
  add_tree(capacity, tree);
  return value_of(start_executor(std::move(model), capacity));
}

std::unique_ptr<exec::DeviceExecutor> medusa_executor(const Backend& backend,
                                                      testing::TinyArch arch, bool shares_lm_head,
                                                      step::Capacity capacity,
                                                      const step::RankedTree& tree) {
  exec::DeviceExecutor::Model model = tiny_model(backend, arch);
  const model::MedusaSpec medusa = testing::tiny_medusa_spec(shares_lm_head);
  model.draft = std::make_unique<exec::MedusaProposer>(
      medusa, value_of(testing::random_medusa_weights(medusa, *model.ops, 12)), tree);
  capacity.drafts.guesses = capacity.drafts.guesses_from_rows = true;
  capacity.drafts.keeps_guesses = true;
  add_tree(capacity, tree);
  return value_of(start_executor(std::move(model), capacity));
}

std::shared_ptr<const step::StepPlan> in_groups(step::StepPlan plan,
                                                const step::Executor& executor) {
  const int32_t num_groups = executor.capacity().kv_groups.size();
  for (step::SlotEdit& edit : plan.slots) {
    if (!executor.capacity().states.empty()) edit.state = edit.slot.value;
    const step::GroupTable blocks = edit.blocks.at(0);
    edit.blocks.assign(static_cast<size_t>(num_groups), blocks);
    for (int32_t g = 0; g < num_groups; ++g) {
      for (step::BlockId& block : edit.blocks[static_cast<size_t>(g)]) {
        block = block * num_groups + g;
      }
    }
  }
  return std::make_shared<const step::StepPlan>(std::move(plan));
}

std::vector<Ask> random_asks(int count, uint32_t seed, int32_t max_output) {
  std::mt19937 engine(seed);
  const auto below = [&](int n) {
    return static_cast<int32_t>(engine() % static_cast<unsigned>(n));
  };
  std::vector<Ask> asks;
  for (int i = 0; i < count; ++i) {
    Ask ask;
    if (i % 3 == 0) {
      for (int32_t t = 0; t < 40; ++t) ask.prompt.push_back((t * 7 + (i % 2) * 3) % 160);
    }
    const int32_t own = 1 + below(i % 4 == 0 ? 70 : 12);
    for (int32_t t = 0; t < own; ++t) ask.prompt.push_back(below(160));
    ask.max_len = static_cast<int32_t>(ask.prompt.size()) + 1 + below(max_output);
    step::SamplingParams& sampling = ask.sampling;
    sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    sampling.seed = engine();
    sampling.num_logprobs = i % 5 == 4 ? -1 : below(4);
    if (i % 5 == 3) sampling.num_prompt_logprobs = i % 4;
    if (i % 4 == 1) sampling.top_k = 30;
    if (i % 4 == 3) sampling.top_p = 0.9f;
    if (i % 7 == 5) sampling.min_p = 0.02f;
    if (i % 5 == 2) sampling.repetition_penalty = 1.3f;
    if (i % 5 == 3) sampling.frequency_penalty = 0.4f;
    if (i % 6 == 4) sampling.presence_penalty = 0.5f;
    if (i % 4 == 2) sampling.logit_bias = {{below(160), 2.5f}};
    if (i % 3 == 1) {
      for (int n = 0; n < 12; ++n) sampling.stop_ids.push_back(below(160));
      sampling.min_tokens = below(6);
    }
    asks.push_back(ask);
  }
  return asks;
}

MaskFn hashed_mask(uint64_t seed) {
  return [seed](const std::vector<int32_t>& output) {
    uint64_t hash = seed;
    for (const int32_t token : output) {
      hash = (hash ^ static_cast<uint64_t>(token)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 31;
    }
    std::mt19937_64 engine(hash);
    std::vector<uint32_t> mask(mask_words(160));
    for (int32_t token = 0; token < 160; ++token) {
      if (engine() % 3 == 0) set_in_mask(mask, token);
    }
    return mask;
  };
}

std::vector<Ask> random_masked_asks(int count, uint32_t seed, int32_t max_output) {
  std::vector<Ask> asks = random_asks(count, seed, max_output);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (i % 3 != 0) asks[i].mask = hashed_mask(seed + i);
  }
  return asks;
}

namespace {

// The rows of a record, side by side without what lies between them.
std::vector<float> record_of(const tap::CapturedRows& rows, const tap::CapturedToken& token,
                             const tap::CaptureSet& set, const tap::Geometry& geometry) {
  std::vector<int64_t> offsets;
  tap::record_elements(set, geometry, &offsets);
  std::vector<float> record;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const bool is_row = i < set.points.size();
    const int64_t elements = is_row ? geometry.width(set.points[i].point)
                                    : set.patterns[i - set.points.size()].elements();
    const tensor::DType dtype = is_row ? geometry.dtype_at(set.points[i].point) : rows.dtype;
    const size_t begin = record.size();
    record.resize(begin + static_cast<size_t>(elements));
    steer::capture::decode_row(rows, token.begin + offsets[i], dtype,
                               std::span(record).subspan(begin));
  }
  return record;
}

// The captured tokens of a step's sequences that count.
void keep_captured(const step::StepResult& step,
                   const std::vector<sched::CapturedSequence>& sequences,
                   const std::vector<Ask>& asks, const tap::Geometry& geometry, Outcome& result) {
  if (step.captured == nullptr) return;
  for (const tap::CapturedToken& token : step.captured->tokens) {
    for (const sched::CapturedSequence& captured : sequences) {
      if (captured.seq != token.seq) continue;
      if (step.captured->data == nullptr) {
        ++result.lost_tokens;
        continue;
      }
      const tap::CaptureSet& set = *asks[captured.id.value].taps->capture;
      result.got[captured.id.value].captured[token.position] =
          record_of(*step.captured, token, set, geometry);
    }
  }
}

// What the engine does between a scheduler and an executor.
class Loop {
 public:
  Loop(step::Executor& executor, const sched::SchedSettings& settings, const std::vector<Ask>& asks,
       sched::DraftProposer* proposer)
      : executor_(executor), asks_(asks), scheduler_(executor.capacity(), settings, proposer) {
    result_.got.resize(asks.size());
  }

  Outcome run() {
    scheduler_.tiers().add_stored(executor_.take_stored());
    size_t num_added = 0;
    for (int32_t round = 0; num_added < asks_.size() || !scheduler_.idle(); ++round) {
      for (size_t i = 0; i < asks_.size(); ++i) {
        if (asks_[i].arrival != round) continue;
        ++num_added;
        add(i);
      }
      while (launch()) continue;
      if (!in_flight_.empty()) collect();
    }
    result_.stats = scheduler_.stats();
    return std::move(result_);
  }

 private:
  struct Launched {
    step::Ticket ticket;
    int32_t left = 1;  // iterations
    bool has_rare_taps = false;
    bool has_prompts = false;
    bool has_trees = false;
  };

  void add(size_t i) {
    const Ask& ask = asks_[i];
    const auto added = scheduler_.add({.id = sched::SequenceId(i),
                                       .prompt = ask.prompt,
                                       .sampling = ask.sampling,
                                       .max_len = ask.max_len,
                                       .priority = 0,
                                       .cache_salt = "",
                                       .constrained = ask.mask != nullptr,
                                       .taps = ask.taps,
                                       .tap_lease = tables_.lease(ask.taps, edits_)});
    if (!added) throw std::runtime_error(added.error().to_string());
  }

  bool launch() {
    if (executor_.wants_fresh_start()) {
      if (!in_flight_.empty()) return false;
      scheduler_.start_afresh();
      executor_.start_afresh();
    }
    auto plan = scheduler_.plan(&edits_);
    if (plan == nullptr) return false;
    const int32_t repeat = plan->repeat;
    const auto scores = [](const step::SeqWork& work) { return !work.score_tokens.empty(); };
    if (std::ranges::any_of(plan->seqs, scores)) ++result_.scored_steps;
    const bool has_rare_taps = std::ranges::any_of(
        plan->seqs, [&](const step::SeqWork& work) { return tables_.is_rare(work); });
    const bool has_prompts = std::ranges::any_of(plan->seqs, [](const step::SeqWork& work) {
      return work.q_len > 1 && work.logits != step::LogitsWanted::kAll;
    });
    const bool has_trees = std::ranges::any_of(
        plan->seqs, [](const step::SeqWork& work) { return !work.tree.empty(); });
    in_flight_.push_back({value_of(executor_.launch(std::move(plan))), repeat, has_rare_taps,
                          has_prompts, has_trees});
    if (scheduler_.constrained().empty()) return true;
    ++result_.constrained_steps;
    while (in_flight_.size() > 1) collect();
    std::vector<uint32_t> masks;
    for (const sched::ConstrainedSequence& row : scheduler_.learn_drafts()) {
      for (size_t i = 0; i <= row.draft.size(); ++i) {
        const std::vector<uint32_t> mask = asks_[row.id.value].mask(output_to(row, i));
        masks.insert(masks.end(), mask.begin(), mask.end());
      }
      result_.masked_trees += row.tree.empty() ? 0 : 1;
    }
    if (const auto supplied = executor_.supply(in_flight_.back().ticket, masks); !supplied) {
      throw std::runtime_error(supplied.error().to_string());
    }
    return true;
  }

  // As it is behind a row of the sequence's part of a step, if the drafts on the way come.
  std::vector<int32_t> output_to(const sched::ConstrainedSequence& of, size_t row) const {
    std::vector<int32_t> output = result_.got[of.id.value].tokens;
    const size_t known = output.size();
    while (row > 0) {
      output.insert(output.begin() + static_cast<ptrdiff_t>(known), of.draft[row - 1]);
      row = of.tree.empty() ? row - 1
                            : static_cast<size_t>(of.tree.parent(static_cast<int32_t>(row)));
    }
    return output;
  }

  void collect() {
    const step::StepResult step = value_of(executor_.collect(in_flight_.front().ticket));
    if (in_flight_.front().has_rare_taps) {
      ++result_.rare_steps;
      result_.rare_graph_steps += step.from_graph ? 1 : 0;
    }
    if (in_flight_.front().has_prompts) {
      ++result_.prompt_steps;
      result_.prompt_graph_steps += step.from_graph ? 1 : 0;
    }
    if (in_flight_.front().has_trees) {
      const bool has_prompts = in_flight_.front().has_prompts;
      ++result_.tree_steps;
      result_.tree_graph_steps += step.from_graph ? 1 : 0;
      result_.trees_beside_prompts += has_prompts ? 1 : 0;
      result_.trees_beside_prompts_graphs += has_prompts && step.from_graph ? 1 : 0;
    }
    if (--in_flight_.front().left == 0) in_flight_.pop_front();
    ++result_.steps;
    result_.graph_steps += step.from_graph ? 1 : 0;
    const bool is_captured = step.captured_graph && step.iteration == 0;
    result_.captured_graphs += is_captured ? 1 : 0;
    result_.timed_captures += is_captured && step.device_us > 0 ? 1 : 0;
    for (const step::SeqResult& one : step.seqs) result_.masked_results += one.masked ? 1 : 0;
    outputs_.clear();
    scheduler_.commit(step, &outputs_);
    keep_captured(step, scheduler_.captured_sequences(), asks_, executor_.capacity().geometry,
                  result_);
    for (const sched::SequenceOutput& output : outputs_) keep(output);
    if (const auto whole = scheduler_.check_integrity(); !whole) {
      throw std::runtime_error(whole.error().to_string());
    }
  }

  void keep(const sched::SequenceOutput& output) {
    Got& got = result_.got[output.id.value];
    got.tokens.insert(got.tokens.end(), output.tokens.begin(), output.tokens.end());
    for (const step::TokenLogprobs& l : output.logprobs) {
      got.logprobs.push_back(l.logprob);
      for (const auto& [token, logprob] : l.top) got.logprobs.push_back(logprob);
    }
    got.scored.insert(got.scored.end(), output.scored.begin(), output.scored.end());
    for (const step::TokenLogprobs& l : output.scores) {
      got.scores.push_back(l.logprob);
      got.ranks.push_back(l.rank);
      for (const auto& [token, logprob] : l.top) {
        got.scores.insert(got.scores.end(), {static_cast<float>(token), logprob});
      }
    }
    got.end = output.end;
    got.num_draft += output.num_draft;
    got.num_accepted += output.num_accepted;
    got.clipped_samples += output.clipped_samples;
    got.cached_tokens = std::max(got.cached_tokens, output.cached_tokens);
  }

  step::Executor& executor_;
  const std::vector<Ask>& asks_;
  sched::Scheduler scheduler_;
  std::deque<Launched> in_flight_;
  std::vector<sched::SequenceOutput> outputs_;
  TapTables tables_;
  sched::TableEdits edits_;
  Outcome result_;
};

}  // namespace

Outcome run(step::Executor& executor, const sched::SchedSettings& settings,
            const std::vector<Ask>& asks, sched::DraftProposer* proposer) {
  return Loop(executor, settings, asks, proposer).run();
}

sched::SchedSettings plain_settings() {
  sched::SchedSettings settings;
  settings.max_num_seqs = kRoomy.num_slots;
  settings.max_num_batched_tokens = kRoomy.max_tokens_per_step;
  settings.max_in_flight = 1;
  settings.enable_prefix_caching = false;
  return settings;
}

std::vector<std::vector<int32_t>> wholes(const std::vector<Ask>& asks,
                                         const std::vector<Got>& got) {
  std::vector<std::vector<int32_t>> wholes;
  for (size_t i = 0; i < asks.size(); ++i) {
    wholes.push_back(asks[i].prompt);
    wholes[i].insert(wholes[i].end(), got[i].tokens.begin(), got[i].tokens.end());
  }
  return wholes;
}

std::vector<Got> run_alone(step::Executor& roomy, std::vector<Ask> asks) {
  for (Ask& ask : asks) ask.arrival = 0;
  sched::SchedSettings settings = plain_settings();
  settings.max_num_seqs = 1;
  return run(roomy, settings, asks).got;
}

void expect_same(const std::vector<Got>& expected, const std::vector<Got>& got,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_FALSE(expected[i].tokens.empty());
    EXPECT_EQ(expected[i].tokens, got[i].tokens) << what << ", sequence " << i;
    EXPECT_EQ(expected[i].logprobs, got[i].logprobs) << what << ", sequence " << i;
    EXPECT_EQ(expected[i].scored, got[i].scored) << what << ", sequence " << i;
    EXPECT_EQ(expected[i].scores, got[i].scores) << what << ", sequence " << i;
    EXPECT_EQ(expected[i].ranks, got[i].ranks) << what << ", sequence " << i;
    EXPECT_EQ(expected[i].end, got[i].end) << what << ", sequence " << i;
    EXPECT_EQ(expected[i].clipped_samples, got[i].clipped_samples) << what << ", sequence " << i;
    EXPECT_TRUE(expected[i].captured == got[i].captured) << what << ", sequence " << i;
  }
}

}  // namespace rudder::metamorphic
