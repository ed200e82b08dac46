// MemoryBudget: how many bytes of the device each part takes, computed before anything is
// allocated. make_executor.h makes it once at start; apps/ prints it (also alone, for --dry-run).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/feature_reader.h"
#include "rudder/exec/kv_layout.h"
#include "rudder/exec/tap_limits.h"
#include "rudder/model/spec.h"
#include "rudder/model/weight_budget.h"
#include "rudder/ops/comm.h"
#include "rudder/step/executor.h"
#include "rudder/tensor/dtype.h"

namespace rudder::exec {

class DraftSource;

// How a backend stores what steps compute.
struct StorageDTypes {
  tensor::DType act = tensor::DType::kF32;
  ops::KvFormat kv;
};

// What layers keep of sequences besides KV, where they keep anything.
struct StateAsk {
  double fraction = 0.5;          // of the memory of KV cache and states
  int32_t checkpoint_blocks = 0;  // StatePool's; 0: as many as take a state's bytes
};

// Of the adapter table; empty: requests have no adapters.
struct AdapterRoom {
  lora::TableSize size = {};
  int64_t bytes = 0;
};

struct MemoryAsk {
  model::WeightBudget weights;
  int64_t available_bytes = 0;        // of the device, before the model is loaded
  double utilization = 0.5;           // the share of it that may be taken
  int64_t kv_cache_memory_bytes = 0;  // 0 = what the share leaves
  int32_t max_model_len = 0;          // 0 = the model's, or less if the KV cache is small
  int32_t block_size = 16;
  int32_t attention_lookback = 0;  // Ops::attention_lookback
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  step::DraftCaps drafts = {};          // Capacity::drafts
  const DraftSource* source = nullptr;  // of guesses, the rank's part; null: none on this device
  int64_t source_weight_bytes = 0;      // of its weights
  StateAsk states = {};
  TapAsk taps = {};
  AdapterRoom adapters = {};
  ops::Rank rank = {};  // whose memory it is
  model::Stage stage = {};
  int32_t max_in_flight = step::Capacity{}.max_in_flight;
};

struct MemoryBudget {
  StorageDTypes dtypes;
  int64_t available_bytes = 0;
  model::WeightBudget weights;
  int64_t workspace_bytes = 0;  // the decoder's buffers and rope tables
  int64_t sequence_bytes = 0;   // what sequences keep between steps, and the inputs of a step
  int64_t tap_bytes = 0;        // the tap table, the capture ring, the lens, the reader of features
  int64_t message_bytes = 0;    // what a stage tells others; 0: one has all layers
  struct {
    int64_t bytes = 0;     // weights and buffers of what guesses; 0: there are none
    int64_t kv_bytes = 0;  // what it keeps beside one block
  } draft;
  KvLayout kv;
  step::StatePool states;
  step::TierCaps tiers = {};  // behind the device: no part of total_bytes()
  int32_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t max_seq_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  step::DraftCaps drafts = {};  // Capacity::drafts
  // What reads captured rows on the device.
  struct {
    bool has_lens = false;      // the head
    int64_t feature_bytes = 0;  // of encoders of dictionaries; 0: the host reads by them
  } readers;
  tap::Geometry geometry;  // empty without taps
  tap::Limits taps;
  AdapterRoom adapters = {};
  int32_t num_ranks = 1;  // that need as much or less each
  int32_t max_in_flight = 0;
  model::Stage stage;  // whose memory this is

  // Of each stage, in order, with equal blocks and lengths; empty where one has all layers. Then
  // all else is of the first stage.
  std::vector<MemoryBudget> stages;

  int64_t block_bytes() const { return kv.block_bytes + draft.kv_bytes; }
  int64_t kv_bytes() const { return block_bytes() * num_blocks; }
  int64_t host_tier_bytes() const;  // of host memory, that of tiers
  int64_t state_bytes() const { return states.bytes * states.count; }
  // That a lone sequence of so many tokens cannot do without.
  int64_t kv_bytes_of(int64_t tokens) const {
    return block_bytes() * step::least_blocks(kv.groups, block_size, tokens);
  }
  // What layers keep of so many tokens, without what blocks, groups and pages round up: the sum
  // over layers of bytes a token times the tokens that the layer's window keeps.
  int64_t kept_bytes_of(int64_t tokens) const;
  int64_t total_bytes() const {
    return weights.bytes + workspace_bytes + sequence_bytes + tap_bytes + adapters.bytes +
           message_bytes + draft.bytes + kv_bytes() + state_bytes();
  }
  std::string to_table() const;  // lines for people, each ended by a newline; of every stage
};

// Of the reader of features, but for the dtype of encoders, which no size depends on.
FeatureBounds feature_bounds(const MemoryBudget& budget);

// `spec` is that of the rank's part (model/shard.h), or the whole model's of a stage. An Error
// names the setting to change and the value that would fit.
Result<MemoryBudget> budget_memory(const model::ModelSpec& spec, const StorageDTypes& dtypes,
                                   const MemoryAsk& ask);

}  // namespace rudder::exec
