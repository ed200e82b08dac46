#include "rudder/engine/router.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::engine {
namespace {

// The group whose blocks stand for a prefix: one that keeps all of it where there is one.
int32_t reference_group(const step::KvGroups& groups) {
  int32_t group = 0;
  for (const step::KvGroup& candidate : groups) {
    if (candidate.window == 0) return group;
    ++group;
  }
  return 0;
}

std::vector<cache::ContentRun> content_runs(const std::vector<tap::SegmentSpec>& segments) {
  std::vector<cache::ContentRun> runs;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].content.none()) continue;
    runs.push_back({.begin = segments[i].begin,
                    .end = i + 1 < segments.size() ? segments[i + 1].begin : tap::kNoEnd,
                    .content = {segments[i].content.low, segments[i].content.high}});
  }
  return runs;
}

// Tokens of the prompt that could come from a cache: the last one is always computed, and so is
// what is captured or fills a latch.
int32_t reusable_tokens(const RequestParams& params) {
  if (params.taps.needs_whole_prompt || params.prompt.empty()) return 0;
  const auto most = static_cast<int32_t>(params.prompt.size()) - 1;
  return params.taps.captured.empty() ? most : std::min(most, params.taps.captured.front().begin);
}

}  // namespace

size_t choose_replica(std::span<const ReplicaLoad> replicas, size_t turn) {
  std::optional<size_t> best;
  const auto cost = [&](size_t i) {
    return replicas[i].open - kCachedTokenWorth * replicas[i].cached;
  };
  for (size_t i = 0; i < replicas.size(); ++i) {
    const size_t at = (turn + i) % replicas.size();
    if (replicas[at].takes && (!best || cost(at) < cost(*best))) best = at;
  }
  RUDDER_CHECK(best.has_value(), "no replica takes the request");
  return *best;
}

Router::Router(const cache::KeyOptions& keys, const step::KvGroups& groups,
               std::span<cache::BlockWatcher* const> watchers)
    : key_options_(keys), hasher_(std::make_shared<const cache::ChainHasher>(keys)) {
  for (cache::BlockWatcher* watcher : watchers) {
    keys_.push_back(std::make_unique<cache::CachedKeys>(reference_group(groups), watcher));
    loads_.push_back(std::make_shared<std::atomic<int64_t>>(0));
  }
}

std::vector<int64_t> Router::cached_tokens(const RequestParams& params) const {
  std::vector<int64_t> cached(keys_.size(), 0);
  const std::shared_ptr<const cache::ChainHasher> keys = hasher();
  const int32_t block_size = key_options_.block_size;
  const int32_t most = reusable_tokens(params) / block_size;
  cache::PrefixChain chain = keys->begin(root_salt(params), content_runs(params.taps.segments));
  std::vector<cache::ContentRun> scratch;
  bool is_found = true;
  for (int32_t i = 0; i < most && is_found; ++i) {
    const cache::BlockKey& key = keys->key(chain, params.prompt, i, scratch);
    is_found = false;
    for (size_t replica = 0; replica < keys_.size(); ++replica) {
      const bool has_those_before = cached[replica] == int64_t{i} * block_size;
      if (!has_those_before || !keys_[replica]->contains(key)) continue;
      cached[replica] += block_size;
      is_found = true;
    }
  }
  return cached;
}

void Router::rename_model(std::string identity) {
  const std::lock_guard lock(mutex_);
  key_options_.model_identity = std::move(identity);
  hasher_ = std::make_shared<const cache::ChainHasher>(key_options_);
}

std::shared_ptr<const cache::ChainHasher> Router::hasher() const {
  const std::lock_guard lock(mutex_);
  return hasher_;
}

Router::Placement Router::place(const RequestParams& params, const std::vector<bool>& takes) {
  const std::vector<int64_t> cached = cached_tokens(params);
  const std::lock_guard lock(mutex_);
  std::vector<ReplicaLoad> replicas;
  replicas.reserve(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    replicas.push_back({.open = load(i), .cached = cached[i], .takes = takes[i]});
  }
  const size_t replica = choose_replica(replicas, turn_);
  turn_ = (replica + 1) % replicas.size();
  return {replica,
          std::make_shared<LoadCharge>(loads_[replica], OpenWork(params, cached[replica]))};
}

EventSink charged(EventSink sink, std::shared_ptr<LoadCharge> charge) {
  return [sink = std::move(sink), charge = std::move(charge)](Event&& event) {
    charge->note(event);
    sink(std::move(event));
  };
}

}  // namespace rudder::engine
