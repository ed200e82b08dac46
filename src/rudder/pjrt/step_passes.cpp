#include "rudder/pjrt/step_passes.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::pjrt {
namespace {

class Cutter {
 public:
  Cutter(const model::ForwardBatch& batch, const PassLimits& limits)
      : batch_(batch), limits_(limits) {}

  std::vector<StepPass> cut();

 private:
  // Some tokens of one sequence.
  struct Run {
    int64_t seq = 0;
    int64_t first = 0;  // token of the step
    int64_t count = 1;
  };

  int64_t keys_of(const Run& run) const;
  StepPass begin(std::span<const int32_t> buckets, int64_t rows, int64_t keys) const;
  void add(const Run& run, StepPass& pass) const;
  void add_pages(const Run& run, StepPass& pass) const;
  void add_singles(std::span<const Run> singles);

  const model::ForwardBatch& batch_;
  const PassLimits& limits_;
  std::vector<StepPass> passes_;
};

// Up to the run's last token.
int64_t Cutter::keys_of(const Run& run) const {
  const int32_t* const positions = batch_.positions.as<int32_t>();
  return *std::max_element(positions + run.first, positions + run.first + run.count) + 1;
}

StepPass Cutter::begin(std::span<const int32_t> buckets, int64_t rows, int64_t keys) const {
  const int64_t pages = (keys + limits_.block_size - 1) / limits_.block_size;
  StepPass pass;
  pass.shape.rows = bucket_of(buckets, rows);
  pass.shape.pages = page_bucket(pages, limits_.max_pages);
  pass.groups.resize(limits_.group_layers.size());
  pass.ids.assign(static_cast<size_t>(pass.shape.rows), 0);
  pass.positions = pass.ids;
  for (StepPass::Group& group : pass.groups) {
    group.slots.assign(static_cast<size_t>(pass.shape.rows) * 2, -1);
  }
  return pass;
}

void Cutter::add(const Run& run, StepPass& pass) const {
  const int64_t num_tokens = batch_.ids.num_rows();
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t token = run.first + i;
    const size_t row = pass.tokens.size();
    pass.tokens.push_back(static_cast<int32_t>(token));
    pass.ids[row] = batch_.ids.as<int32_t>()[token];
    pass.positions[row] = batch_.positions.as<int32_t>()[token];
    for (size_t g = 0; g < pass.groups.size(); ++g) {
      const int32_t slot =
          batch_.kv_slot.as<int32_t>()[static_cast<int64_t>(g) * num_tokens + token];
      if (slot < 0) continue;
      const int32_t block = slot / limits_.block_size / limits_.group_layers[g];
      pass.groups[g].slots[2 * row] = block;
      pass.groups[g].slots[2 * row + 1] = slot % limits_.block_size;
    }
  }
}

// Of the run's sequence. What lies behind its last key is never read as one.
void Cutter::add_pages(const Run& run, StepPass& pass) const {
  const int32_t row = batch_.attention.table_row.as<int32_t>()[run.seq];
  const int64_t used = (keys_of(run) + limits_.block_size - 1) / limits_.block_size;
  for (size_t g = 0; g < pass.groups.size(); ++g) {
    const ops::View table = batch_.attention.table_of(static_cast<int32_t>(g));
    const int32_t* const blocks = table.as<int32_t>() + row * table.shape[1];
    for (int64_t page = 0; page < pass.shape.pages; ++page) {
      const int32_t block = page < used ? std::max(0, blocks[page]) : 0;
      pass.groups[g].pages.push_back(block / limits_.group_layers[g]);
    }
  }
}

void Cutter::add_singles(std::span<const Run> singles) {
  constexpr size_t kMost = std::end(kRowBuckets)[-1];
  while (!singles.empty()) {
    const std::span<const Run> some = singles.first(std::min(kMost, singles.size()));
    int64_t keys = 1;
    for (const Run& run : some) keys = std::max(keys, keys_of(run));
    StepPass pass = begin(kRowBuckets, std::ssize(some), keys);
    for (const Run& run : some) {
      add(run, pass);
      add_pages(run, pass);
    }
    for (StepPass::Group& group : pass.groups) {
      group.pages.resize(static_cast<size_t>(pass.shape.rows * pass.shape.pages), 0);
    }
    passes_.push_back(std::move(pass));
    singles = singles.subspan(some.size());
  }
}

std::vector<StepPass> Cutter::cut() {
  constexpr int64_t kMost = std::end(kChunkBuckets)[-1];
  const int32_t* const begins = batch_.attention.q_begin.as<int32_t>();
  std::vector<Run> singles;
  for (int64_t seq = 0; seq < batch_.attention.kv_len.num_rows(); ++seq) {
    const int64_t end = begins[seq + 1];
    if (end - begins[seq] == 1) {
      singles.push_back({seq, begins[seq], 1});
      continue;
    }
    for (int64_t first = begins[seq]; first < end; first += kMost) {
      const Run run{seq, first, std::min(kMost, end - first)};
      StepPass pass = begin(kChunkBuckets, run.count, keys_of(run));
      pass.shape.is_chunk = true;
      add(run, pass);
      add_pages(run, pass);
      passes_.push_back(std::move(pass));
    }
  }
  add_singles(singles);
  return std::move(passes_);
}

}  // namespace

int64_t bucket_of(std::span<const int32_t> buckets, int64_t count) {
  for (const int32_t bucket : buckets) {
    if (count <= bucket) return bucket;
  }
  return buckets.back();
}

int64_t page_bucket(int64_t pages, int64_t most) {
  int64_t bucket = 16;
  while (bucket < pages) bucket *= 4;
  RUDDER_CHECK(pages <= most, "{} blocks of at most {}", pages, most);
  return std::min(bucket, most);
}

std::vector<StepPass> cut_step(const model::ForwardBatch& batch, const PassLimits& limits) {
  RUDDER_CHECK(batch.attention.ancestors.empty(), "modules run no trees");
  return Cutter(batch, limits).cut();
}

}  // namespace rudder::pjrt
