#include "rudder/cache/prefix_chain.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::cache {

void ChainHasher::set_runs(PrefixChain& chain, std::span<const ContentRun> runs) {
  chain.runs.clear();
  for (const ContentRun& run : runs) {
    if (run.begin >= run.end) continue;
    ContentRun* last = chain.runs.empty() ? nullptr : &chain.runs.back();
    RUDDER_CHECK(last == nullptr || last->end <= run.begin, "runs overlap at {}", run.begin);
    if (last != nullptr && last->end == run.begin && last->content == run.content) {
      last->end = run.end;
    } else {
      chain.runs.push_back(run);
    }
  }
}

PrefixChain ChainHasher::begin(std::string salt, std::span<const ContentRun> runs) const {
  PrefixChain chain;
  set_runs(chain, runs);
  chain.root = hasher_.root(salt);
  chain.salt = std::make_shared<const std::string>(std::move(salt));
  return chain;
}

void ChainHasher::restart(PrefixChain& chain) const {
  chain.root = hasher_.root(*chain.salt);
  chain.keys.clear();
}

BlockContent ChainHasher::content(const PrefixChain& chain, std::span<const int32_t> tokens,
                                  int32_t i, std::vector<ContentRun>& runs) const {
  const int32_t begin = i * block_size_;
  runs.clear();
  auto run = std::ranges::upper_bound(chain.runs, begin, {}, &ContentRun::end);
  for (; run != chain.runs.end() && run->begin < begin + block_size_; ++run) {
    if (RUDDER_MUTANT(kHashWithoutContent)) break;
    runs.push_back({.begin = std::max(run->begin - begin, 0),
                    .end = std::min(run->end - begin, block_size_),
                    .content = run->content});
  }
  return {tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(block_size_)), runs};
}

const BlockKey& ChainHasher::key(PrefixChain& chain, std::span<const int32_t> tokens, int32_t i,
                                 std::vector<ContentRun>& runs) const {
  while (static_cast<int32_t>(chain.keys.size()) <= i) {
    const auto next = static_cast<int32_t>(chain.keys.size());
    const bool at_root = next == 0 || RUDDER_MUTANT(kHashWithoutParent);
    const BlockKey& parent = at_root ? chain.root : chain.keys.back();
    chain.keys.push_back(hasher_.child(parent, content(chain, tokens, next, runs)));
  }
  return chain.keys[static_cast<size_t>(i)];
}

}  // namespace rudder::cache
