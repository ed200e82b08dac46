#include "rudder/draft/suffix_proposer.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::draft {
namespace {

// Tokens of a sequence, and of finished outputs, that one call files.
constexpr int64_t kTreeTokensACall = 512;
constexpr int64_t kFinishedTokensACall = 64;

// Sequences of equal keys may see what the others were told: those of one tenant and cache_salt
// that are steered alike. There is one model and no adapter a process.
std::string key_of(const sched::NewSequence& sequence) {
  std::string key =
      fmt::format("{}:{}:{}", sequence.tenant, sequence.cache_salt.size(), sequence.cache_salt);
  if (sequence.taps == nullptr) return key;
  for (const tap::TapSegment& segment : sequence.taps->segments) {
    key += fmt::format(":{:x}.{:x}", segment.content.low, segment.content.high);
  }
  return key;
}

}  // namespace

SuffixProposer::SuffixProposer(const SuffixSettings& settings, int64_t max_bytes)
    : settings_(settings),
      max_bytes_(max_bytes),
      finished_({.depth = settings.max_tree_depth,
                 .max_requests = settings.max_cached_requests,
                 .max_bytes = max_bytes}) {}

void SuffixProposer::begin(const sched::NewSequence& sequence) {
  Text text = {SuffixTree(settings_.max_tree_depth), key_of(sequence), sequence.prompt.size()};
  bytes_ += text.tree.bytes();
  const bool is_new = texts_.emplace(sequence.id, std::move(text)).second;
  RUDDER_CHECK(is_new, "sequence {} begins twice", sequence.id.value);
}

void SuffixProposer::end(sched::SequenceId id, std::span<const int32_t> tokens) {
  const auto found = texts_.find(id);
  RUDDER_CHECK(found != texts_.end(), "sequence {} has not begun", id.value);
  const Text& text = found->second;
  finished_.add(text.key, tokens.subspan(text.prompt_len));
  bytes_ -= text.tree.bytes();
  texts_.erase(found);
}

void SuffixProposer::grow(Text& text, std::span<const int32_t> tokens) {
  const int64_t before = text.tree.bytes();
  const int64_t from = text.tree.num_tokens();
  const int64_t count = std::min(std::ssize(tokens) - from, kTreeTokensACall);
  if (bytes_ - before + text.tree.bytes_after(count) > max_bytes_) return;
  for (int64_t i = from; i < from + count; ++i) text.tree.append(tokens[static_cast<size_t>(i)]);
  bytes_ += text.tree.bytes() - before;
}

void SuffixProposer::propose(sched::SequenceId id, std::span<const int32_t> tokens,
                             const sched::DraftAsk& ask, sched::Draft* draft) {
  finished_.work(kFinishedTokensACall);
  Text& text = texts_.at(id);
  grow(text, tokens);
  guess_.clear();
  if (text.tree.num_tokens() == std::ssize(tokens)) guess_.add_own(text.tree);
  finished_.add_to(guess_, text.key, tokens);
  guess_.make({.most = ask.most,
               .takes_tree = ask.takes_tree && settings_.makes_trees,
               .max_spec_factor = settings_.max_spec_factor,
               .min_token_prob = settings_.min_token_prob},
              draft);
}

}  // namespace rudder::draft
