#include "rudder/cpu/sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/philox.h"
#include "rudder/cpu/float_buckets.h"
#include "rudder/cpu/sample_kernels.h"

namespace rudder::cpu {
namespace {

// A token that may be drawn. Candidates are kept in the order of their ids until cut down.
struct Candidate {
  float weight = 0;  // exp((logit - max) / temperature): 1 for the most likely token
  int32_t token = 0;
};

// Most likely first; equal ones by id. Without a branch: which is heavier is hard to predict.
bool is_before(const Candidate& a, const Candidate& b) {
  return (a.weight > b.weight) | ((a.weight == b.weight) & (a.token < b.token));
}

// Sorts after every token.
constexpr Candidate kLast = {0, std::numeric_limits<int32_t>::max()};

// Memory of one row's sampling, kept by its thread from row to row.
struct Scratch {
  std::vector<float> raw;  // logits as they came, when the row is changed and logprobs are asked
  std::vector<float> block_max;
  std::vector<float> raw_block_max;
  std::vector<float> values;
  std::vector<float> weights;
  std::vector<double> block_sum;
  std::vector<double> bucket_mass;
  std::vector<uint32_t> bucket_count;
  std::vector<Candidate> candidates;
  std::vector<Candidate> ranked;
};

// A row of SampleArgs with its lists and counts found.
struct LogitsRow {
  const ops::SampleRow& params;
  std::span<const int32_t> stop_ids;
  std::span<const int32_t> bias;         // pairs: token, bits of a float
  int32_t* output_count = nullptr;       // [vocab], where there are penalties
  const uint8_t* prompt_seen = nullptr;  // likewise
  const uint32_t* mask = nullptr;        // where the row has one

  bool bans_stop_ids() const { return params.position < params.stop_from && !stop_ids.empty(); }
  bool is_changed() const { return !bias.empty() || bans_stop_ids() || output_count != nullptr; }
};

LogitsRow row_of(const ops::SampleArgs& args, const ops::SampleRow& params) {
  const int32_t* lists = args.lists.as<int32_t>();
  LogitsRow row{.params = params,
                .stop_ids = {lists + params.stop_begin, static_cast<size_t>(params.num_stop_ids)},
                .bias = {lists + params.bias_begin, 2 * static_cast<size_t>(params.num_bias)}};
  if (params.has_penalties != 0) {
    row.output_count = args.state.output_count.rows(params.slot, 1).as<int32_t>();
    row.prompt_seen = args.state.prompt_seen.rows(params.slot, 1).as<uint8_t>();
  }
  if (params.mask_row >= 0) {
    RUDDER_CHECK(params.mask_row < args.masks.num_rows(), "mask {}", params.mask_row);
    row.mask = static_cast<const uint32_t*>(args.masks.rows(params.mask_row, 1).data);
  }
  return row;
}

std::span<float> logits_of(const tensor::View& logits, int64_t r) {
  return {logits.as<float>() + r * logits.shape[1], static_cast<size_t>(logits.shape[1])};
}

// The mask, bans and logit bias, then penalties: nothing lifts a logit off -Inf.
void change_logits(const LogitsRow& row, std::span<float> logits) {
  const auto vocab = static_cast<int64_t>(logits.size());
  if (row.mask != nullptr) sample_kernels().mask(logits.data(), vocab, row.mask);
  for (size_t i = 0; i < row.bias.size(); i += 2) {
    logits[static_cast<size_t>(row.bias[i])] += std::bit_cast<float>(row.bias[i + 1]);
  }
  if (row.bans_stop_ids()) {
    for (const int32_t token : row.stop_ids) {
      // End-of-sequence ids come from a file and may be no token of this model.
      if (token >= 0 && token < vocab) logits[static_cast<size_t>(token)] = -kInfinity;
    }
  }
  if (row.output_count != nullptr) {
    sample_kernels().penalize(logits.data(), vocab, row.output_count, row.prompt_seen,
                              {.repetition = row.params.repetition_penalty,
                               .presence = row.params.presence_penalty,
                               .frequency = row.params.frequency_penalty});
  }
}

RowScan scan(std::span<const float> logits, std::vector<float>& block_max) {
  const auto vocab = static_cast<int64_t>(logits.size());
  block_max.resize(static_cast<size_t>(num_sample_blocks(vocab)));
  return sample_kernels().scan(logits.data(), vocab, block_max.data());
}

int32_t first_of(std::span<const float> logits, const RowScan& row,
                 const std::vector<float>& block_max) {
  const auto block = std::find(block_max.begin(), block_max.end(), row.max) - block_max.begin();
  const auto begin = logits.begin() + block * kSampleBlock;
  return static_cast<int32_t>(std::find(begin, logits.end(), row.max) - logits.begin());
}

// Tokens whose logit is at least the k-th largest, in the order of their ids; weight = logit. Ties
// with the k-th largest all stay.
void select_top_k(std::span<const float> logits, size_t k, const std::vector<float>& block_max,
                  Scratch& scratch) {
  std::vector<float>& values = scratch.values;
  std::vector<Candidate>& out = scratch.candidates;
  // The k-th largest block maximum is a lower bound, so that few blocks are looked into.
  const bool by_block = k <= block_max.size();
  if (by_block) {
    values.assign(block_max.begin(), block_max.end());
  } else {
    values.assign(logits.begin(), logits.end());
  }
  const float bound = kth_largest(values, k, scratch.bucket_count);
  out.clear();
  for (size_t block = 0; block < block_max.size(); ++block) {
    if (block_max[block] < bound) continue;
    const size_t begin = block * kSampleBlock;
    const size_t end = std::min(begin + kSampleBlock, logits.size());
    for (size_t i = begin; i < end; ++i) {
      if (logits[i] >= bound) out.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
  if (!by_block) return;
  values.clear();
  for (const Candidate& c : out) values.push_back(c.weight);
  const float kth = kth_largest(values, k, scratch.bucket_count);
  std::erase_if(out, [kth](const Candidate& c) { return c.weight < kth; });
}

// The last of the nucleus: of the candidates, most likely first, the one that brings their weight
// to `mass`.
Candidate nucleus_end(const std::vector<Candidate>& candidates, double mass, Scratch& scratch) {
  std::vector<double>& bucket_mass = scratch.bucket_mass;
  bucket_mass.assign(kNumBuckets, 0);
  for (const Candidate& c : candidates) bucket_mass[bucket_of(c.weight)] += c.weight;
  double before = 0;  // weight of all that comes before the range looked at
  size_t bucket = kNumBuckets - 1;
  while (bucket > 0 && before + bucket_mass[bucket] < mass) before += bucket_mass[bucket--];

  std::vector<Candidate>& ranked = scratch.ranked;
  ranked.clear();
  for (const Candidate& c : candidates) {
    if (bucket_of(c.weight) == bucket) ranked.push_back(c);
  }
  auto begin = ranked.begin();
  auto end = ranked.end();
  while (end - begin > 16) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, is_before);
    double weight = 0;
    for (auto c = begin; c != middle; ++c) weight += c->weight;
    if (before + weight >= mass) {
      end = middle;
    } else {
      before += weight;
      begin = middle;
    }
  }
  std::sort(begin, end, is_before);
  for (auto c = begin; c != end; ++c) {
    before += c->weight;
    if (before >= mass) return *c;
  }
  // Rounding kept the sum below `mass`: the range's last, or everything.
  return begin != end ? end[-1] : kLast;
}

// Drops what comes after `end` or weighs less than `min_weight`; returns the weight of the rest.
double keep_until(const Candidate& end, float min_weight, std::vector<Candidate>& candidates) {
  double total = 0;
  size_t count = 0;
  // Without a branch: which tokens stay is hard to predict.
  for (const Candidate c : candidates) {
    const bool is_kept = !is_before(end, c) & (c.weight >= min_weight);
    candidates[count] = c;
    count += is_kept ? 1 : 0;
    total += is_kept ? c.weight : 0;
  }
  candidates.resize(count);
  return total;
}

// Inverse of the cumulative distribution over the candidates in the order of their ids.
int32_t draw(const std::vector<Candidate>& candidates, double target) {
  double sum = 0;
  int32_t token = 0;
  for (const Candidate& c : candidates) {
    if (c.weight == 0) continue;
    token = c.token;
    sum += c.weight;
    if (sum > target) break;
  }
  return token;
}

// The same over a whole row whose block sums are known.
int32_t draw_from_row(std::span<const float> weights, const std::vector<double>& block_sum,
                      double target) {
  double sum = 0;  // of the blocks before `block`
  size_t block = 0;
  for (size_t i = 0; i < block_sum.size() && sum <= target; ++i) {
    if (block_sum[i] == 0) continue;
    block = i;
    if (sum + block_sum[i] > target) break;
    sum += block_sum[i];
  }
  const size_t begin = block * kSampleBlock;
  const size_t end = std::min(begin + kSampleBlock, weights.size());
  size_t token = begin;
  for (size_t i = begin; i < end; ++i) {
    if (weights[i] == 0) continue;
    token = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return static_cast<int32_t>(token);
}

// Tokens worth at least `cutoff`, in the order of their ids. Without a branch a token: whether it
// stays is hard to predict.
void select_by_weight(std::span<const float> weights, float cutoff, std::vector<Candidate>& out) {
  out.clear();
  std::array<Candidate, kSampleBlock> kept;
  for (size_t begin = 0; begin < weights.size(); begin += kept.size()) {
    const size_t end = std::min(begin + kept.size(), weights.size());
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      kept[count] = {weights[i], static_cast<int32_t>(i)};
      count += weights[i] >= cutoff ? 1 : 0;
    }
    out.insert(out.end(), kept.begin(), kept.begin() + count);
  }
}

int32_t draw_token(const ops::SampleRow& row, std::span<const float> logits, float max,
                   Scratch& scratch) {
  const SampleKernels& kernels = sample_kernels();
  const auto vocab = static_cast<int64_t>(logits.size());
  // Below 1e-30 nothing but the maximum has weight, and 1 / temperature would overflow.
  const float scale = 1.0f / std::max(row.temperature, 1e-30f);
  const double uniform = philox_uniform(row.seed, static_cast<uint64_t>(row.position));
  std::vector<Candidate>& candidates = scratch.candidates;
  double total = 0;
  if (row.top_k > 0 && row.top_k < vocab) {
    select_top_k(logits, static_cast<size_t>(row.top_k), scratch.block_max, scratch);
    scratch.weights.resize(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) scratch.weights[i] = candidates[i].weight;
    total = kernels.exp_row(scratch.weights.data(), static_cast<int64_t>(candidates.size()), max,
                            scale, scratch.weights.data(), nullptr);
    for (size_t i = 0; i < candidates.size(); ++i) candidates[i].weight = scratch.weights[i];
  } else {
    scratch.weights.resize(logits.size());
    scratch.block_sum.resize(scratch.block_max.size());
    total = kernels.exp_row(logits.data(), vocab, max, scale, scratch.weights.data(),
                            scratch.block_sum.data());
    if (row.top_p >= 1.0f && row.min_p <= 0.0f) {
      return draw_from_row(scratch.weights, scratch.block_sum, uniform * total);
    }
    // All tokens lighter than this weigh less than 1 - top_p together: the nucleus is without them.
    const double light = 0.999 * (1.0 - row.top_p) * total / static_cast<double>(vocab);
    const float cutoff = row.top_p < 1.0f ? static_cast<float>(light) : row.min_p;
    select_by_weight(scratch.weights, cutoff, candidates);
  }
  Candidate end = kLast;
  if (row.top_p < 1.0f) end = nucleus_end(candidates, row.top_p * total, scratch);
  const double kept = keep_until(end, row.min_p, candidates);
  return draw(candidates, uniform * kept);
}

// Of the logits as the model gave them: before mask, bias, penalties and temperature.
void write_logprobs(std::span<const float> raw, float max, const std::vector<float>& block_max,
                    ops::SampledToken& out, std::span<ops::TopLogprob> top, Scratch& scratch) {
  const SampleKernels& kernels = sample_kernels();
  const auto vocab = static_cast<int64_t>(raw.size());
  const double log_sum =
      max + std::log(kernels.exp_row(raw.data(), vocab, max, 1.0f, nullptr, nullptr));
  out.logprob = static_cast<float>(raw[static_cast<size_t>(out.token)] - log_sum);
  out.rank = static_cast<int32_t>(1 + kernels.count_before(raw.data(), vocab, out.token));
  std::fill(top.begin(), top.end(), ops::TopLogprob{});
  top = top.first(std::min(top.size(), raw.size()));
  if (top.empty()) return;
  select_top_k(raw, top.size(), block_max, scratch);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), is_before);
  for (size_t i = 0; i < top.size(); ++i) {
    const Candidate& c = scratch.candidates[i];
    top[i] = {c.token, static_cast<float>(c.weight - log_sum)};
  }
}

// Fills all of `out` but its end; its token is -1 when the logits are not numbers.
void sample_row(const LogitsRow& row, std::span<float> logits, ops::SampledToken& out,
                std::span<ops::TopLogprob> top, Scratch& scratch) {
  const RowScan raw_scan = scan(logits, scratch.block_max);
  if (raw_scan.has_bad || raw_scan.max == -kInfinity) return;
  const bool wants_logprobs = row.params.num_logprobs >= 0;
  std::span<const float> raw = logits;
  const std::vector<float>* raw_block_max = &scratch.block_max;
  RowScan row_scan = raw_scan;
  if (row.is_changed() || row.mask != nullptr) {
    if (wants_logprobs) {
      scratch.raw.assign(logits.begin(), logits.end());
      scratch.raw_block_max = scratch.block_max;
      raw = scratch.raw;
      raw_block_max = &scratch.raw_block_max;
    }
    change_logits(row, logits);
    row_scan = scan(logits, scratch.block_max);
    if (row_scan.max == -kInfinity) return;
  }
  out.token = row.params.temperature == 0.0f
                  ? first_of(logits, row_scan, scratch.block_max)
                  : draw_token(row.params, logits, row_scan.max, scratch);
  if (wants_logprobs) write_logprobs(raw, raw_scan.max, *raw_block_max, out, top, scratch);
}

// Returns why the sequence ends with this token, and updates its slot for the next step.
ops::SampleEnd keep(const LogitsRow& row, int32_t token, const ops::SlotState& state) {
  const int32_t slot = row.params.slot;
  ops::SampleEnd end = ops::SampleEnd::kNone;
  if (token < 0) {
    end = ops::SampleEnd::kNumerical;
  } else {
    state.carry.as<int32_t>()[slot] = token;
    if (!state.carry_position.empty()) {
      state.carry_position.as<int32_t>()[slot] = row.params.position;
    }
    if (row.output_count != nullptr) ++row.output_count[token];
    if (std::find(row.stop_ids.begin(), row.stop_ids.end(), token) != row.stop_ids.end()) {
      end = ops::SampleEnd::kStopId;
    } else if (row.params.position + 1 >= row.params.max_len) {
      end = ops::SampleEnd::kLength;
    }
  }
  if (end != ops::SampleEnd::kNone) state.ended.as<int32_t>()[slot] = 1;
  return end;
}

// Row r of the call, from its logits to its slot.
void sample_one(const ops::SampleArgs& args, int64_t r) {
  thread_local Scratch scratch;
  const auto& params = static_cast<const ops::SampleRow*>(args.rows.data)[r];
  if (params.slot + 1 == args.state.carry.shape[0]) return;  // padding
  auto& out = static_cast<ops::SampledToken*>(args.sampled.data)[r];
  out = {};
  if (args.state.ended.as<int32_t>()[params.slot] != 0) {
    out.end = ops::SampleEnd::kMasked;
    return;
  }
  const LogitsRow row = row_of(args, params);
  // This backend does not use the hints; it checks them, since a wrong one gives other backends a
  // wrong token.
  RUDDER_CHECK(!args.all_greedy || params.temperature == 0.0f);
  RUDDER_CHECK(args.any_logprobs || params.num_logprobs < 0);
  RUDDER_CHECK(args.any_changed || !row.is_changed());
  RUDDER_CHECK(args.any_masked || row.mask == nullptr);
  RUDDER_CHECK(args.any_drafts || params.draft < 0);
  std::span<ops::TopLogprob> top;
  if (params.num_logprobs > 0) {
    const int64_t max_logprobs = args.top.shape[1];
    RUDDER_CHECK(params.num_logprobs <= max_logprobs, "{} logprobs", params.num_logprobs);
    top = {static_cast<ops::TopLogprob*>(args.top.data) + r * max_logprobs,
           static_cast<size_t>(params.num_logprobs)};
  }
  sample_row(row, logits_of(args.logits, r), out, top, scratch);
  out.end = keep(row, out.token, args.state);
}

void score_one(const ops::ScoreArgs& args, int64_t r) {
  thread_local Scratch scratch;
  const int64_t max_logprobs = args.top.shape[1];
  const std::span<const float> logits = logits_of(args.logits, r);
  auto& out = static_cast<ops::SampledToken*>(args.scored.data)[r];
  out = {};
  const RowScan row_scan = scan(logits, scratch.block_max);
  if (row_scan.has_bad || row_scan.max == -kInfinity) {
    out.end = ops::SampleEnd::kNumerical;
    return;
  }
  out.token = args.tokens.as<int32_t>()[r];
  RUDDER_CHECK(out.token >= 0 && out.token < std::ssize(logits), "token {} is scored", out.token);
  write_logprobs(logits, row_scan.max, scratch.block_max, out,
                 {static_cast<ops::TopLogprob*>(args.top.data) + r * max_logprobs,
                  static_cast<size_t>(args.num_top)},
                 scratch);
}

// Behind row r, the first of a tree, which is sampled: those on the path of what is.
void sample_path(const ops::SampleArgs& args, int64_t r) {
  const auto* rows = static_cast<const ops::SampleRow*>(args.rows.data);
  auto* sampled = static_cast<ops::SampledToken*>(args.sampled.data);
  int64_t last = r;  // that was sampled
  for (int64_t row = r + 1; row < args.logits.shape[0] && rows[row].parent_up > 0; ++row) {
    const int64_t parent = row - rows[row].parent_up;
    RUDDER_CHECK(args.any_drafts && parent >= r && rows[row].slot == rows[r].slot &&
                 rows[row].position == rows[parent].position + 1 && rows[row].draft < 0);
    const bool is_accepted = parent == last && sampled[last].end == ops::SampleEnd::kNone &&
                             sampled[last].token == rows[row].own_draft;
    if (is_accepted) {
      sample_one(args, row);
      last = row;
    } else {
      sampled[row] = {.end = ops::SampleEnd::kRejected};
    }
  }
}

// Row r and those chained to it by drafts, in order, or in a tree. A row that follows another does
// nothing: the first of them did.
void sample_chain(const ops::SampleArgs& args, int64_t r) {
  const auto* rows = static_cast<const ops::SampleRow*>(args.rows.data);
  if ((r > 0 && rows[r - 1].draft >= 0) || rows[r].parent_up > 0) return;
  auto* sampled = static_cast<ops::SampledToken*>(args.sampled.data);
  sample_one(args, r);
  sample_path(args, r);
  for (; rows[r].draft >= 0; ++r) {
    RUDDER_CHECK(r + 1 < args.logits.shape[0] && rows[r + 1].slot == rows[r].slot &&
                 rows[r + 1].position == rows[r].position + 1 &&
                 rows[r + 1].num_behind == rows[r].num_behind + 1);
    const bool is_accepted =
        sampled[r].end == ops::SampleEnd::kNone && sampled[r].token == rows[r].draft;
    if (is_accepted) {
      sample_one(args, r + 1);
    } else {
      sampled[r + 1] = {.end = ops::SampleEnd::kRejected};
    }
  }
}

// Runs f(row) for each row, on the pool if there is one and more than one row.
template <typename F>
void for_each_row(int64_t num_rows, ThreadPool* pool, F f) {
  if (pool != nullptr && num_rows > 1) {
    pool->parallel_for(num_rows, f);
  } else {
    for (int64_t r = 0; r < num_rows; ++r) f(r);
  }
}

}  // namespace

void sample_rows(const ops::SampleArgs& args, ThreadPool* pool) {
  const int64_t num_rows = args.logits.shape[0];
  RUDDER_CHECK(args.rows.shape[0] == num_rows && args.rows.shape[1] == sizeof(ops::SampleRow) &&
               args.sampled.shape[0] == num_rows);
  for_each_row(num_rows, pool, [&](int64_t r) { sample_chain(args, r); });
}

void score_rows(const ops::ScoreArgs& args, ThreadPool* pool) {
  const int64_t num_rows = args.logits.shape[0];
  RUDDER_CHECK(args.tokens.shape[0] == num_rows && args.scored.shape[0] == num_rows &&
               args.top.shape[0] == num_rows && args.num_top >= 0 &&
               args.num_top <= args.top.shape[1]);
  for_each_row(num_rows, pool, [&](int64_t r) { score_one(args, r); });
}

}  // namespace rudder::cpu
