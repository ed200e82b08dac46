#include "rudder/exec/graph_shapes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "rudder/exec/slot_table.h"

namespace rudder::exec {
namespace {

// A step of more sequences is long enough to hide the launches of its ops.
constexpr int32_t kMostDecodeTokens = 512;
constexpr int32_t kMostDraftedTokens = 256;
// Sequences up to this length have graphs of their own: attention has a kernel for them alone.
constexpr int32_t kShortRun = 8;

// Of prompt steps. Attention chooses its kernels by the longest sequence: there is one for steps
// whose sequences are all shorter than the first, and none that begins behind the last. Between
// them powers of two tell kernels apart.
constexpr int32_t kLeastPrompt = 65;
constexpr int32_t kLongPrompt = 256;
// A token more takes longer than a launch less saves.
constexpr int64_t kMostPadding = 16;

constexpr int32_t kMostPassTokens = 256;
constexpr int32_t kLongestPassRun = 64;

// On a rank also those of rows of which it has a share: they wait for the others.
tap::Passages rare_passages(ops::Rank rank) {
  constexpr tap::Passages kAlways = tap::kMixerEnd | tap::kMixerWeights | tap::kRouter;
  return rank.is_alone() ? kAlways : static_cast<tap::Passages>(kAlways | tap::kActivation);
}

// Where only prompts are captured, the few decode steps with taps run op by op.
bool captures_decodes(const tap::Limits& taps) {
  return taps.steering() || (taps.capture() && !taps.captures_prompts_only);
}

int32_t power_of_two(int32_t number) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(number)));
}

// The first of the numbers that is not below it; 0: there is none.
int32_t next_of(const std::vector<int32_t>& numbers, int64_t number) {
  const auto found = std::ranges::lower_bound(numbers, number);
  return found == numbers.end() ? 0 : *found;
}

GraphKey with_taps(GraphShape shape, const PackedStep& packed) {
  const PackedTaps& taps = packed.taps;
  shape.adapts = packed.taps.adapters.is_used;
  shape.one_adapter = packed.taps.adapters.has_one;
  if (!taps.is_used) return {std::move(shape)};
  shape.only_adds = taps.only_adds;
  shape.encodes = taps.encodes;
  return {std::move(shape), taps.tapped};
}

}  // namespace

std::vector<int32_t> graph_buckets(int32_t most) {
  std::vector<int32_t> rows;
  for (int32_t next = 1; next < most;) {
    rows.push_back(next);
    if (next < 8) {
      next *= 2;
    } else if (next < 64) {
      next += 8;
    } else {
      next += next < 256 ? 16 : 32;
    }
  }
  rows.push_back(most);
  return rows;
}

std::vector<int32_t> draft_graph_buckets(int32_t least, int32_t most) {
  constexpr int32_t kEach = 16;  // a token more takes longer where products are streams of weights
  std::vector<int32_t> rows;
  for (int32_t next = 1; next < most; next += next < kEach ? 1 : next < 2 * kEach ? 4 : 8) {
    rows.push_back(next);
    if (next == 64) break;
  }
  for (const int32_t next : graph_buckets(most)) {
    if (next > 64 || next == most) rows.push_back(next);
  }
  std::erase_if(rows, [&](int32_t next) { return next < least; });
  return rows;
}

StepShapes::StepShapes(const step::Capacity& capacity, ops::Rank rank)
    : capacity_(capacity),
      has_taps_(captures_decodes(capacity.taps)),
      rare_(rare_passages(rank)),
      common_(static_cast<tap::Passages>(tap::kAllPassages & ~rare_)) {
  const int32_t most =
      std::min({capacity.num_slots, capacity.max_tokens_per_step, kMostDecodeTokens});
  families_.push_back({1, false, graph_buckets(most)});
  add_drafted_families();
  if (families_.back().has_trees) longest_beside_trees_ = families_.back().max_q_len;
}

void StepShapes::add_drafted_families() {
  const step::DraftCaps& drafts = capacity_.drafts;
  const int32_t longest = 1 + drafts.max_draft;
  const int32_t most = std::min(max_sampled_rows(capacity_), kMostDraftedTokens);
  if (longest == 1 || most == 1) return;
  const std::vector<int32_t> tokens = draft_graph_buckets(2, most);
  if (!drafts.guess_tree.empty()) {  // a chain is a path of it
    families_.push_back({1 + drafts.guess_tree.depth(), true, tokens});
    return;
  }
  const int32_t short_run = std::min(longest, kShortRun);
  families_.push_back({short_run, false, tokens});
  if (longest > short_run && most > short_run) {
    families_.push_back({longest, false, draft_graph_buckets(short_run + 1, most)});
  }
  if (drafts.takes_trees) families_.push_back({short_run, true, tokens});
}

// With drafts there are no more sequences than slots, and one of padding.
GraphShape StepShapes::decode_shape(const Family& family, int32_t tokens) const {
  const bool has_drafts = family.max_q_len > 1;
  return {.kind = StepKind::kDecode,
          .tokens = tokens,
          .seqs = has_drafts ? std::min(tokens, capacity_.num_slots + 1) : tokens,
          .rows = tokens,
          .max_q_len = family.max_q_len,
          .has_trees = family.has_trees};
}

std::vector<GraphKey> StepShapes::at_start() const {
  std::vector<GraphKey> keys;
  const auto all = [&](tap::Passages kinds) {
    return tap::PassageSet::all(kinds, capacity_.geometry.num_layers);
  };
  for (const Family& family : families_) {
    for (auto tokens = family.tokens.rbegin(); tokens != family.tokens.rend(); ++tokens) {
      GraphShape shape = decode_shape(family, *tokens);
      keys.push_back({shape});
      if (!capacity_.adapters.empty()) {
        shape.adapts = true;
        keys.push_back({shape});
        shape.one_adapter = true;
        keys.push_back({shape});
        shape.adapts = shape.one_adapter = false;
      }
      if (!has_taps_) continue;
      shape.only_adds = true;
      keys.push_back({shape, all(tap::kLayerEnd)});
      shape.only_adds = false;
      keys.push_back({shape, all(tap::kLayerEnd)});
      keys.push_back({shape, all(common_)});
    }
  }
  return keys;
}

std::optional<GraphKey> StepShapes::key_of(PackedStep& packed) const {
  if (packed.num_tokens() == 0) return std::nullopt;
  return packed.num_sampled() == packed.num_tokens() ? decode_key_of(packed)
                                                     : prompt_key_of(packed);
}

std::optional<GraphKey> StepShapes::decode_key_of(PackedStep& packed) const {
  if (!packed.ancestors.empty()) words_for_chains(longest_beside_trees_, packed);
  const auto family = std::ranges::find_if(families_, [&](const Family& candidate) {
    return candidate.max_q_len >= packed.max_q_len &&
           (candidate.has_trees || packed.ancestors.empty());
  });
  if (family == families_.end()) return std::nullopt;
  const int32_t tokens = next_of(family->tokens, packed.num_tokens());
  if (tokens == 0 || (packed.taps.is_used && !has_taps_)) return std::nullopt;
  return with_taps(decode_shape(*family, tokens), packed);
}

std::optional<GraphKey> StepShapes::prompt_key_of(const PackedStep& packed) const {
  if (packed.max_q_len < kLeastPrompt || !packed.scores.empty()) return std::nullopt;
  const int64_t padding =
      (kPromptStepMultiple - packed.num_tokens() % kPromptStepMultiple) % kPromptStepMultiple;
  const int64_t num_tokens = packed.num_tokens() + padding;
  if (padding > kMostPadding || num_tokens > capacity_.max_tokens_per_step) return std::nullopt;
  // Padding is a sequence.
  if (padding > 0 && packed.num_seqs() == capacity_.num_slots) return std::nullopt;
  const auto tokens = static_cast<int32_t>(num_tokens);
  const GraphShape shape = {
      .kind = StepKind::kPrompt,
      .tokens = tokens,
      .seqs = capacity_.num_slots,
      .max_q_len = packed.max_q_len > kLongPrompt ? tokens : power_of_two(packed.max_q_len),
      .has_trees = !packed.ancestors.empty()};
  return with_taps(shape, packed);
}

// Graphs that only add are captured at the start alone.
GraphKey StepShapes::widened(GraphKey key) const {
  if (!key.tapped) return key;
  GraphShape& shape = key.shape;
  const tap::Passages used = key.tapped->kinds();
  const bool is_decode = shape.kind == StepKind::kDecode;
  const bool at_ends = (used & ~tap::kLayerEnd) == 0;
  const bool is_rare = (used & rare_) != 0 || !shape.encodes.empty();
  shape.only_adds = shape.only_adds && is_decode && at_ends && !is_rare;
  const tap::Passages kinds = at_ends      ? tap::kLayerEnd
                              : !is_decode ? static_cast<tap::Passages>(common_ | used)
                              : is_rare    ? used
                                           : common_;
  key.tapped = tap::PassageSet::all(kinds, capacity_.geometry.num_layers);
  return key;
}

// Single tokens stay so, for a pass may have iterations. Else there is one sequence of padding at
// least, which takes the tokens that are left over. A pass that samples every token does so padded
// too, and no other does.
std::optional<GraphKey> pass_key(const step::Capacity& capacity, const PackedStep& packed) {
  const int64_t num_rows = packed.num_sampled();
  if (num_rows == 0 || packed.max_q_len > kLongestPassRun) return std::nullopt;
  const bool samples_all = packed.num_tokens() == num_rows;
  const int32_t most = std::min(kMostPassTokens, capacity.max_tokens_per_step);
  const std::vector<int32_t> numbers = graph_buckets(capacity.num_slots);
  GraphShape shape = {.kind = StepKind::kPass,
                      .has_trees = !packed.ancestors.empty(),
                      .goes_on = !packed.guesses.goes_on_rows.empty()};
  if (packed.num_tokens() == packed.num_seqs()) {
    shape.seqs = shape.tokens = next_of(numbers, packed.num_seqs());
  } else {
    shape.seqs = next_of(numbers, packed.num_seqs()) + 1;
    shape.tokens = next_of(graph_buckets(samples_all ? std::min(most, capacity.num_slots) : most),
                           std::max<int64_t>(packed.num_tokens(), shape.seqs));
  }
  if (shape.tokens == 0 || shape.tokens > most) return std::nullopt;
  shape.rows = samples_all ? shape.tokens : std::min(next_of(numbers, num_rows), shape.tokens - 1);
  // 0 where all sequences are trees, 1 where all are single tokens.
  shape.max_q_len =
      packed.max_q_len < 2 ? packed.max_q_len : std::max(power_of_two(packed.max_q_len), kShortRun);
  return GraphKey{shape};
}

void pad_to(const GraphShape& shape, const step::Capacity& capacity, PackedStep& packed) {
  pad_step(shape.tokens, shape.seqs, capacity, packed);
  if (shape.has_trees) packed.ancestors.resize(static_cast<size_t>(shape.tokens), 0);
  PackedGuesses& guesses = packed.guesses;
  if (!guesses.goes_on_rows.empty()) guesses.goes_on_rows.resize(packed.ids.size(), -1);
  if (shape.kind != StepKind::kPass) return;
  ops::SampleRow nobody = packed.sample_rows.front();
  nobody.slot = capacity.num_slots;
  packed.sample_rows.resize(static_cast<size_t>(shape.rows), nobody);
  packed.logits_rows.resize(packed.sample_rows.size(), 0);
  if (!guesses.feedback_rows.empty()) guesses.feedback_rows.resize(packed.sample_rows.size(), -1);
}

}  // namespace rudder::exec
