// BlockMirror: what a consumer of the prefix cache's news believes to be cached. For tests.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/cache/block_watcher.h"

namespace rudder::testing {

class BlockMirror final : public cache::BlockWatcher {
 public:
  void stored(const cache::CachedBlock& block) override {
    ++held_[key_of(block)];
    ++(block.is_public ? stored_ : withheld_);
  }
  void removed(const cache::CachedBlock& block) override {
    const auto found = held_.find(key_of(block));
    if (found == held_.end()) {
      wrong_ = fmt::format("a block of group {} was removed that was not stored", block.group);
    } else if (--found->second == 0) {
      held_.erase(found);
    }
  }
  void cleared() override { held_.clear(); }
  void step_done() override {}

  uint64_t num_stored() const { return stored_; }      // public blocks
  uint64_t num_withheld() const { return withheld_; }  // others

  // Empty when it is what the cache has, each block as often.
  std::string differs_from(const std::vector<cache::CachedBlock>& cached) const {
    std::map<Key, int> expected;
    for (const cache::CachedBlock& block : cached) ++expected[key_of(block)];
    if (wrong_.empty() && expected == held_) return "";
    return wrong_.empty() ? fmt::format("{} blocks are cached, {} were stored and not removed",
                                        expected.size(), held_.size())
                          : wrong_;
  }

 private:
  using Key = std::tuple<uint64_t, int32_t, cache::Medium>;
  static Key key_of(const cache::CachedBlock& block) {
    return {block.hash, block.group, block.medium};
  }

  std::map<Key, int> held_;  // keys of few bits are not unique
  uint64_t stored_ = 0;
  uint64_t withheld_ = 0;
  std::string wrong_;
};

}  // namespace rudder::testing
