#include "rudder/exec/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <variant>

#include "rudder/base/check.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/feature_reader.h"
#include "rudder/exec/handover.h"
#include "rudder/exec/head_lens.h"
#include "rudder/exec/record_format.h"
#include "rudder/exec/scorer.h"
#include "rudder/exec/state_memory.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/exec/tap_state.h"
#include "rudder/model/decoder.h"
#include "rudder/model/stage.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/model/tensors.h"

namespace rudder::exec {
namespace {

// Steps of prompts whose blocks a window has not given back yet: one runs, one is in flight.
constexpr int64_t kStepsOfPrompt = 2;

std::string bytes_text(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

// A KV slot (block of a layer * block_size + offset) is an int32.
int64_t most_blocks(const KvLayout& kv, int32_t block_size) {
  int64_t most = std::numeric_limits<int32_t>::max();
  for (const step::KvGroup& group : kv.groups) {
    most = std::min(most, int64_t{std::numeric_limits<int32_t>::max()} / group.layers / block_size);
  }
  return most;
}

// Of every sequence at its longest beside the prompts of the largest steps: more would only keep
// cached prefixes longer.
int64_t blocks_of_all(const MemoryBudget& budget) {
  int64_t blocks = 0;
  for (const step::KvGroup& group : budget.kv.groups) {
    const auto held = [&](int64_t chunk) {
      return step::blocks_held(group, budget.block_size, budget.max_seq_len, chunk);
    };
    blocks +=
        held(1) * (budget.max_num_seqs - 1) + held(kStepsOfPrompt * budget.max_num_batched_tokens);
  }
  return blocks;
}

// A lone sequence, and the checkpoint that it goes on from.
constexpr int32_t kLeastStates = 2;

// From one checkpoint to the next: a sequence's checkpoints take no more than its blocks do.
int32_t checkpoint_blocks(const MemoryBudget& budget, const MemoryAsk& ask) {
  if (ask.states.checkpoint_blocks > 0) return ask.states.checkpoint_blocks;
  const int64_t bytes = budget.block_bytes() * budget.kv.groups.size();
  return static_cast<int32_t>(std::max<int64_t>(1, (budget.states.bytes + bytes - 1) / bytes));
}

// Of `bytes` for states and KV: as many states as their share holds, at most one for each sequence
// and one for each block that one can end.
Result<int32_t> state_count(const MemoryBudget& budget, const MemoryAsk& ask, int64_t bytes) {
  const int64_t most = budget.max_num_seqs + blocks_of_all(budget);
  if (budget.states.bytes == 0) return static_cast<int32_t>(std::max<int64_t>(most, kLeastStates));
  const auto share = static_cast<int64_t>(static_cast<double>(bytes) * ask.states.fraction);
  const int64_t count = std::min(share / budget.states.bytes, most);
  const int64_t least = kLeastStates * budget.states.bytes;
  if (count >= kLeastStates && bytes - count * budget.states.bytes >= budget.block_bytes()) {
    return static_cast<int32_t>(count);
  }
  const bool has_room = least + budget.block_bytes() <= bytes;
  const double would_hold =
      std::ceil(1000 * static_cast<double>(least) / static_cast<double>(bytes)) / 1000;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{:.2f} of the {} for KV cache and states is {}: at least {} states of "
                          "{} and a block are needed{}",
                          ask.states.fraction, bytes_text(bytes), bytes_text(share), kLeastStates,
                          bytes_text(budget.states.bytes),
                          has_room ? fmt::format(", which {:.3f} would hold", would_hold) : ""),
              has_room                        ? "state-memory-fraction"
              : ask.kv_cache_memory_bytes > 0 ? "kv-cache-memory-bytes"
                                              : "gpu-memory-utilization");
}

// One line a kind of group.
std::string groups_text(const MemoryBudget& budget) {
  if (budget.kv.groups.size() == 1 && budget.kv.groups[0].window == 0) return "";
  std::string text;
  for (const step::KvGroup* group = budget.kv.groups.begin(); group != budget.kv.groups.end();) {
    const auto* end = std::find_if(group, budget.kv.groups.end(),
                                   [&](const step::KvGroup& other) { return other != *group; });
    text += fmt::format(
        "{:<16}{:>12}  of {} layers, {}\n", "  KV groups", end - group, group->layers,
        group->window == 0 ? "all tokens" : fmt::format("the last {} tokens", group->window));
    group = end;
  }
  return text;
}

// Bytes that the KV cache may take.
Result<int64_t> kv_budget(const MemoryBudget& budget, const MemoryAsk& ask) {
  const int64_t fixed = budget.total_bytes();
  if (ask.kv_cache_memory_bytes > 0) {
    if (fixed + ask.kv_cache_memory_bytes > ask.available_bytes) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("weights and workspace take {}, a KV cache of {} on top is more than "
                              "the {} available",
                              bytes_text(fixed), bytes_text(ask.kv_cache_memory_bytes),
                              bytes_text(ask.available_bytes)),
                  "kv-cache-memory-bytes");
    }
    return ask.kv_cache_memory_bytes;
  }
  const auto share =
      static_cast<int64_t>(static_cast<double>(ask.available_bytes) * ask.utilization);
  if (fixed + budget.block_bytes() > share) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("weights and workspace take {}; {:.0f} % of the available {} is {}: "
                            "nothing is left for the KV cache",
                            bytes_text(fixed), 100 * ask.utilization,
                            bytes_text(ask.available_bytes), bytes_text(share)),
                "gpu-memory-utilization");
  }
  return share - fixed;
}

std::string tiers_text(const step::TierCaps& tiers) {
  std::string text = fmt::format("of host memory, {} records of a block", tiers.plain_records);
  if (tiers.stated_records > 0) {
    text += fmt::format(" and {} with a checkpoint", tiers.stated_records);
  }
  if (tiers.has_disk())
    text += fmt::format("; {} of files behind it", bytes_text(tiers.disk_bytes));
  return text;
}

std::string states_text(const step::StatePool& states) {
  return fmt::format("{} of {}, of sequences and of checkpoints every {} blocks", states.count,
                     bytes_text(states.bytes), states.checkpoint_blocks);
}

std::string taps_text(const MemoryBudget& budget) {
  std::string text;
  if (budget.taps.steering()) {
    text += fmt::format("{} steering programs, {} of vectors", budget.taps.num_rows - 1,
                        bytes_text(budget.taps.num_floats * int64_t{sizeof(float)}));
  }
  if (budget.taps.capture()) {
    const auto width = static_cast<int64_t>(tensor::dtype_bytes(budget.geometry.dtype));
    text += fmt::format("{}{} of {} a step", text.empty() ? "" : ", ",
                        bytes_text(budget.taps.capture_elements * width),
                        budget.taps.captures_prompts_only ? "embeddings" : "captures");
    if (budget.readers.feature_bytes > 0) {
      text += fmt::format(", {} of encoders", bytes_text(budget.readers.feature_bytes));
    }
  }
  return text;
}

// What the ask alone says.
MemoryBudget asked(const StorageDTypes& dtypes, const MemoryAsk& ask) {
  MemoryBudget budget;
  budget.dtypes = dtypes;
  budget.available_bytes = ask.available_bytes;
  budget.block_size = ask.block_size;
  budget.max_num_seqs = ask.max_num_seqs;
  budget.max_num_batched_tokens = ask.max_num_batched_tokens;
  budget.drafts = ask.drafts;
  budget.adapters = ask.adapters;
  budget.num_ranks = ask.rank.count;
  budget.max_in_flight = ask.max_in_flight;
  budget.stage = ask.stage;
  return budget;
}

// But for the blocks, which nothing but the KV cache depends on, and the number of states.
step::Capacity budgeted_capacity(const MemoryBudget& budget, const MemoryAsk& ask,
                                 const model::ModelSpec& spec) {
  return step::Capacity{.num_slots = ask.max_num_seqs,
                        .num_blocks = 0,
                        .block_size = ask.block_size,
                        .max_tokens_per_step = ask.max_num_batched_tokens,
                        .max_seq_len = budget.max_seq_len,
                        .vocab_size = spec.vocab,
                        .max_in_flight = ask.max_in_flight,
                        .drafts = ask.drafts,
                        .kv_groups = budget.kv.groups,
                        .states = {.count = model::keeps_states(spec) ? kLeastStates : 0},
                        .geometry = budget.geometry,
                        .taps = budget.taps,
                        .adapters = budget.adapters.size};
}

int64_t draft_bytes(const step::Capacity& capacity, const MemoryAsk& ask, tensor::DType act) {
  if (ask.source == nullptr) return 0;
  return ask.source_weight_bytes + ask.source->device_bytes(capacity, act, ask.rank);
}

}  // namespace

FeatureBounds feature_bounds(const MemoryBudget& budget) {
  return {.dictionary_bytes = budget.readers.feature_bytes,
          .widest = static_cast<int32_t>(budget.geometry.widest())};
}

namespace {

// What reads captured rows: the lens, the encoders of features.
void budget_taps(const model::ModelSpec& spec, const step::Capacity& capacity, const MemoryAsk& ask,
                 MemoryBudget& budget) {
  budget.readers.has_lens = ask.stage.is_last() && ask.taps.reads_aside && budget.taps.capture() &&
                            !budget.taps.captures_prompts_only;
  const bool reads_features = ask.stage.is_first() && ask.rank.index == 0 &&
                              budget.taps.steering() && budget.taps.capture() &&
                              !budget.taps.captures_prompts_only;
  budget.readers.feature_bytes = reads_features ? ask.taps.feature_bytes : 0;
  budget.tap_bytes = TapState::device_bytes(capacity) +
                     (budget.readers.has_lens
                          ? HeadLens::device_bytes(spec, ask.rank.count) + ask.taps.reader_bytes
                          : 0);
  if (budget.readers.feature_bytes > 0) {
    budget.tap_bytes +=
        DeviceFeatureReader::device_bytes(feature_bounds(budget), budget.dtypes.act) +
        ask.taps.reader_bytes;
  }
}

}  // namespace

Result<MemoryBudget> budget_memory(const model::ModelSpec& spec, const StorageDTypes& dtypes,
                                   const MemoryAsk& ask) {
  RUDDER_CHECK(ask.max_num_seqs > 0 && ask.max_num_batched_tokens > 0 && ask.block_size > 0);
  const int32_t most = std::max(spec.max_positions, spec.longest_positions);
  if (ask.max_model_len > most) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is longer than the {} positions the model was made for; a rope of "
                            "a longer context is set by --rope-scaling or --hf-overrides",
                            ask.max_model_len, most),
                "max-model-len");
  }
  MemoryBudget budget = asked(dtypes, ask);
  const model::ModelSpec part = model::stage_spec(spec, ask.stage);
  budget.max_seq_len = ask.max_model_len > 0 ? ask.max_model_len : spec.max_positions;
  budget.weights = ask.weights;
  const auto layout = [&]() -> Result<KvLayout> {
    RUDDER_TRY(const KvLayout whole, make_kv_layout(spec, {.kv = dtypes.kv,
                                                           .block_size = ask.block_size,
                                                           .max_seq_len = budget.max_seq_len,
                                                           .lookback = ask.attention_lookback}));
    return stage_kv_layout(whole, ask.stage);
  };
  RUDDER_TRY(budget.kv, layout());
  tap::Geometry geometry = model::tap_geometry(spec, dtypes.act, ask.rank);
  if (!ask.taps.routers) geometry.leave_out_routers();
  RUDDER_TRY(budget.taps, tap_limits(ask.taps, geometry));
  const bool has_taps = budget.taps.steering() || budget.taps.capture();
  if (has_taps) budget.geometry = geometry;
  const auto capacity = [&] { return budgeted_capacity(budget, ask, spec); };
  const auto workspace = [&] {
    return model::Decoder::workspace_bytes(part,
                                           {.max_tokens = ask.max_num_batched_tokens,
                                            .max_logits_rows = max_logits_rows(capacity()),
                                            .max_seq_len = budget.max_seq_len,
                                            .taps_shares = has_taps,
                                            .adapts = !ask.adapters.size.empty()},
                                           dtypes.act, ask.rank);
  };
  budget.workspace_bytes = workspace();
  const auto sequence_bytes = [&] {
    return StepBuffers::device_bytes(capacity()) + Scorer::device_bytes(capacity()) +
           StateMemory::row_bytes(part, capacity());
  };
  budget.sequence_bytes = sequence_bytes();
  budget_taps(spec, capacity(), ask, budget);
  if (!ask.stage.is_alone()) {
    const auto act_bytes = static_cast<int64_t>(tensor::dtype_bytes(dtypes.act));
    budget.message_bytes = Handover::device_bytes(
        ask.stage, capacity(),
        {.residual = model::residual_width(spec) * act_bytes, .kept = spec.hidden * act_bytes});
  }

  budget.draft.bytes = draft_bytes(capacity(), ask, dtypes.act);
  if (ask.source != nullptr) {
    RUDDER_TRY(budget.draft.kv_bytes,
               ask.source->block_bytes(dtypes.kv, dtypes.act, ask.block_size));
  }

  RUDDER_TRY(const int64_t kept_bytes, kv_budget(budget, ask));
  if (model::keeps_states(spec)) {
    budget.states.bytes = StateMemory::state_bytes(part);
    budget.states.checkpoint_blocks = checkpoint_blocks(budget, ask);
    RUDDER_TRY(budget.states.count, state_count(budget, ask, kept_bytes));
  }
  const int64_t kv_bytes = kept_bytes - budget.state_bytes();
  int64_t blocks =
      std::min(kv_bytes / budget.block_bytes(), most_blocks(budget.kv, ask.block_size));
  if (ask.kv_cache_memory_bytes == 0) blocks = std::min(blocks, blocks_of_all(budget));
  const int32_t longest =
      step::longest_sequence(budget.kv.groups, ask.block_size, blocks, budget.max_seq_len);
  if (longest < budget.max_seq_len) {
    if (ask.max_model_len > 0 || longest == 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("a sequence of {} tokens needs {} of KV cache; the {} there are hold "
                      "{} tokens",
                      budget.max_seq_len, bytes_text(budget.kv_bytes_of(budget.max_seq_len)),
                      bytes_text(kv_bytes), longest),
          "max-model-len");
    }
    budget.max_seq_len = longest;
    // A window may now be none: the layout is that of a server that is asked for this length.
    RUDDER_TRY(budget.kv, layout());
    blocks = std::min(kv_bytes / budget.block_bytes(), most_blocks(budget.kv, ask.block_size));
    budget.workspace_bytes = workspace();
    budget.draft.bytes = draft_bytes(capacity(), ask, dtypes.act);
    budget.sequence_bytes = sequence_bytes();
  }
  budget.num_blocks = static_cast<int32_t>(blocks);
  return budget;
}

int64_t MemoryBudget::host_tier_bytes() const {
  const step::RecordParts blocks = step::group_part(kv.groups.size()) - 1;
  return tiers.plain_records * record_bytes(tiers, blocks) +
         tiers.stated_records * record_bytes(tiers, blocks | step::kStatePart);
}

int64_t MemoryBudget::kept_bytes_of(int64_t tokens) const {
  // Layers that share KV have one index.
  std::set<std::pair<int32_t, int32_t>> own;
  for (const KvLayerIndex& at : kv.layers) {
    if (at.group >= 0) own.emplace(at.group, at.index);
  }
  int64_t bytes = 0;
  for (const auto& [group, index] : own) {
    const step::KvGroup& one = kv.groups[static_cast<size_t>(group)];
    const int64_t kept = one.window > 0 ? std::min<int64_t>(tokens, one.window) : tokens;
    bytes += kept * (kv.block_bytes / one.layers / block_size);
  }
  return bytes;
}

std::string MemoryBudget::to_table() const {
  const auto line = [](std::string_view what, int64_t bytes, const std::string& note) {
    return fmt::format("{:<16}{:>12}  {}\n", what, bytes_text(bytes), note);
  };
  std::string table;
  if (!stages.empty()) {
    for (const MemoryBudget& one : stages) table += one.to_table();
    return table;
  }
  if (!stage.is_alone()) {
    table += fmt::format("of stage {} of {}, layers {} to {}\n", stage.index, stage.count,
                         stage.first_layer, stage.first_layer + stage.num_layers - 1);
  }
  if (num_ranks > 1) {
    table += fmt::format("of each of {} ranks; the first needs most\n", num_ranks);
  }
  table += line("weights", weights.bytes, weights.formats);
  if (weights.host_bytes > 0) {
    table += line("host memory", weights.host_bytes,
                  "embeddings by layer, of which the device reads rows there");
  }
  table += line("workspace", workspace_bytes,
                fmt::format("steps of {} tokens, {}", max_num_batched_tokens,
                            tensor::dtype_name(dtypes.act)));
  table += line("sequences", sequence_bytes,
                fmt::format("penalty counts, block tables, {}inputs of a step, for {}",
                            drafts.keeps_guesses ? "tokens and guesses, " : "", max_num_seqs));
  if (draft.bytes > 0) {
    table += line("draft model", draft.bytes,
                  fmt::format("guesses of up to {} tokens{}", drafts.max_draft,
                              draft.kv_bytes > 0 ? "; its KV lies beside each block" : ""));
  }
  if (tap_bytes > 0) table += line("taps", tap_bytes, taps_text(*this));
  if (adapters.bytes > 0) {
    table += line("adapters", adapters.bytes,
                  fmt::format("{} of rank {}", adapters.size.num_rows, adapters.size.max_rank));
  }
  if (message_bytes > 0) {
    table += line("messages", message_bytes,
                  fmt::format("between stages, for {} steps in flight", max_in_flight));
  }
  const std::string tokens = kv.groups.size() > 1 || kv.groups[0].window > 0
                                 ? ""
                                 : fmt::format("{} tokens in ", int64_t{num_blocks} * block_size);
  table += line("KV cache", kv_bytes(),
                fmt::format("{}{} blocks of {}, {}", tokens, num_blocks, block_size,
                            ops::kv_format_name(dtypes.kv)));
  table += groups_text(*this);
  if (!states.empty()) table += line("states", state_bytes(), states_text(states));
  if (!tiers.empty()) table += line("host tier", host_tier_bytes(), tiers_text(tiers));
  table +=
      line("total", total_bytes(), fmt::format("of {} available", bytes_text(available_bytes)));
  table +=
      fmt::format("{:<16}{:>12}  tokens, {} each, {:.1f} sequences of that length at once\n",
                  "longest sequence", max_seq_len, bytes_text(kv_bytes_of(max_seq_len)),
                  static_cast<double>(kv_bytes()) / static_cast<double>(kv_bytes_of(max_seq_len)));
  for (const int64_t tokens : {1024, 8192, 32768, 131072}) {
    if (tokens > max_seq_len) break;
    table += line(fmt::format("KV of {}", tokens), kv_bytes_of(tokens),
                  fmt::format("{} by layers and windows", bytes_text(kept_bytes_of(tokens))));
  }
  return table;
}

}  // namespace rudder::exec
