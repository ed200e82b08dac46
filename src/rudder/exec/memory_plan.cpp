#include "rudder/exec/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <variant>

#include "rudder/base/check.h"
#include "rudder/exec/scorer.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/exec/tap_state.h"
#include "rudder/model/decoder.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/model/tensors.h"

namespace rudder::exec {
namespace {

// A KV slot (block * block_size + offset) is an int32.
constexpr int64_t kMaxKvTokens = std::numeric_limits<int32_t>::max();

std::string bytes_text(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

int64_t block_bytes(const model::ModelSpec& spec, tensor::DType kv_dtype, int32_t block_size) {
  int64_t elements = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::KvGeometry kv = model::kv_geometry(layer);
    elements += int64_t{2} * kv.num_kv_heads * kv.head_dim;
  }
  return elements * block_size * static_cast<int64_t>(tensor::dtype_bytes(kv_dtype));
}

// Lengths past max_positions make sense only for a rope that adapts to them.
bool stretches(const model::ModelSpec& spec) {
  return std::any_of(spec.ropes.begin(), spec.ropes.end(), [](const model::RopeSpec& rope) {
    return std::holds_alternative<model::RopeDynamic>(rope.scaling);
  });
}

int64_t blocks_for(int64_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// Bytes that the KV cache may take.
Result<int64_t> kv_budget(const MemoryPlan& plan, const MemoryAsk& ask) {
  const int64_t fixed = plan.total_bytes();
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
  if (fixed + plan.kv_block_bytes > share) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("weights and workspace take {}; {:.0f} % of the available {} is {}: "
                            "nothing is left for the KV cache",
                            bytes_text(fixed), 100 * ask.utilization,
                            bytes_text(ask.available_bytes), bytes_text(share)),
                "gpu-memory-utilization");
  }
  return share - fixed;
}

std::string taps_text(const MemoryPlan& plan) {
  std::string text;
  if (plan.taps.steering()) {
    text += fmt::format("{} steering programs, {} of vectors", plan.taps.num_rows - 1,
                        bytes_text(plan.taps.num_floats * int64_t{sizeof(float)}));
  }
  if (plan.taps.capture()) {
    const auto width = static_cast<int64_t>(tensor::dtype_bytes(plan.geometry.dtype));
    text += fmt::format("{}{} of {} a step", text.empty() ? "" : ", ",
                        bytes_text(plan.taps.capture_elements * width),
                        plan.taps.captures_prompts_only ? "embeddings" : "captures");
  }
  return text;
}

}  // namespace

Result<MemoryPlan> plan_memory(const model::ModelSpec& spec, const StorageDTypes& dtypes,
                               const MemoryAsk& ask) {
  RUDDER_CHECK(ask.max_num_seqs > 0 && ask.max_num_batched_tokens > 0 && ask.block_size > 0);
  if (ask.max_model_len > spec.max_positions && !stretches(spec)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is longer than the {} positions the model was made for",
                            ask.max_model_len, spec.max_positions),
                "max-model-len");
  }
  MemoryPlan plan;
  plan.dtypes = dtypes;
  plan.available_bytes = ask.available_bytes;
  plan.block_size = ask.block_size;
  plan.max_num_seqs = ask.max_num_seqs;
  plan.max_num_batched_tokens = ask.max_num_batched_tokens;
  plan.max_seq_len = ask.max_model_len > 0 ? ask.max_model_len : spec.max_positions;
  plan.weight_bytes =
      ask.weight_bytes > 0 ? ask.weight_bytes : model::weight_bytes(spec, dtypes.linear);
  plan.kv_block_bytes = block_bytes(spec, dtypes.kv, ask.block_size);
  const auto workspace = [&] {
    return model::Decoder::workspace_bytes(
        spec,
        {.max_tokens = ask.max_num_batched_tokens,
         .max_logits_rows = max_logits_rows(ask.max_num_seqs, ask.max_num_batched_tokens),
         .max_seq_len = plan.max_seq_len},
        dtypes.act);
  };
  const tap::Geometry geometry = model::tap_geometry(spec, dtypes.act);
  RUDDER_TRY(plan.taps, tap_limits(ask.taps, geometry));
  if (plan.taps.steering() || plan.taps.capture()) plan.geometry = geometry;
  const auto capacity = [&] {
    return step::Capacity{.num_slots = ask.max_num_seqs,
                          .num_blocks = 0,
                          .block_size = ask.block_size,
                          .max_tokens_per_step = ask.max_num_batched_tokens,
                          .max_seq_len = plan.max_seq_len,
                          .vocab_size = static_cast<int32_t>(spec.vocab),
                          .geometry = plan.geometry,
                          .taps = plan.taps};
  };
  plan.workspace_bytes = workspace();
  plan.sequence_bytes = StepBuffers::device_bytes(capacity()) + Scorer::device_bytes(capacity());
  plan.tap_bytes = TapState::device_bytes(capacity());

  RUDDER_TRY(const int64_t budget, kv_budget(plan, ask));
  int64_t blocks = std::min(budget / plan.kv_block_bytes, kMaxKvTokens / ask.block_size);
  const int64_t blocks_of_longest = blocks_for(plan.max_seq_len, ask.block_size);
  if (ask.kv_cache_memory_bytes == 0) {
    // Every sequence fits at its longest: more would only keep cached prefixes longer.
    blocks = std::min(blocks, blocks_of_longest * ask.max_num_seqs);
  }
  if (blocks < blocks_of_longest) {
    if (ask.max_model_len > 0 || blocks == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a sequence of {} tokens needs {} of KV cache; the {} there are hold "
                              "{} tokens",
                              plan.max_seq_len, bytes_text(blocks_of_longest * plan.kv_block_bytes),
                              bytes_text(budget), blocks * ask.block_size),
                  "max-model-len");
    }
    plan.max_seq_len = static_cast<int32_t>(blocks * ask.block_size);
    plan.workspace_bytes = workspace();
    plan.sequence_bytes = StepBuffers::device_bytes(capacity()) + Scorer::device_bytes(capacity());
  }
  plan.num_blocks = static_cast<int32_t>(blocks);
  return plan;
}

std::string MemoryPlan::to_table() const {
  const auto line = [](std::string_view what, int64_t bytes, const std::string& note) {
    return fmt::format("{:<16}{:>12}  {}\n", what, bytes_text(bytes), note);
  };
  std::string table;
  table += line("weights", weight_bytes, std::string(tensor::dtype_name(dtypes.linear)));
  table += line("workspace", workspace_bytes,
                fmt::format("steps of {} tokens, {}", max_num_batched_tokens,
                            tensor::dtype_name(dtypes.act)));
  table +=
      line("sequences", sequence_bytes,
           fmt::format("penalty counts, block tables, inputs of a step, for {}", max_num_seqs));
  if (tap_bytes > 0) table += line("taps", tap_bytes, taps_text(*this));
  table += line("KV cache", kv_bytes(),
                fmt::format("{} tokens in {} blocks of {}, {}", int64_t{num_blocks} * block_size,
                            num_blocks, block_size, tensor::dtype_name(dtypes.kv)));
  table +=
      line("total", total_bytes(), fmt::format("of {} available", bytes_text(available_bytes)));
  table += fmt::format("{:<16}{:>12}  tokens, {:.1f} sequences of that length at once\n",
                       "longest sequence", max_seq_len,
                       static_cast<double>(num_blocks) * block_size / max_seq_len);
  return table;
}

}  // namespace rudder::exec
