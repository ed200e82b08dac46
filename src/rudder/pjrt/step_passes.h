// How a step is cut into passes: plain host arrays, as modules take them (model_text.h). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/model/decoder.h"
#include "rudder/pjrt/model_text.h"

namespace rudder::pjrt {

struct StepPass {
  PassShape shape;
  std::vector<int32_t> tokens;  // of the step, one a row; padding is behind them
  std::vector<int32_t> ids;     // [rows], as positions
  std::vector<int32_t> positions;
  struct Group {
    std::vector<int32_t> slots;  // [rows, 2]
    std::vector<int32_t> pages;  // [rows, pages] or [pages]
  };
  std::vector<Group> groups;  // by KV group
};

// Modules are compiled for so many rows: the least of these that the rows fit in, or the last.
inline constexpr int32_t kRowBuckets[] = {1, 8, 32, 128};
inline constexpr int32_t kChunkBuckets[] = {32, 256};
int64_t bucket_of(std::span<const int32_t> buckets, int64_t count);
// Likewise of blocks: 16 and powers of 4 times it, no more than the longest sequence has.
int64_t page_bucket(int64_t pages, int64_t most);

struct PassLimits {
  int32_t block_size = 16;
  int64_t max_pages = 1;              // of the longest sequence
  std::vector<int32_t> group_layers;  // by KV group: LayerInBlock.layers
};

// The batch's views are of the host.
std::vector<StepPass> cut_step(const model::ForwardBatch& batch, const PassLimits& limits);

}  // namespace rudder::pjrt
