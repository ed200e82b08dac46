#include "rudder/fleet/held_blocks.h"

#include "rudder/base/check.h"

namespace rudder::fleet {

void HeldBlocks::apply(const EventBatch& batch) {
  std::span<const int32_t> tokens = batch.tokens;
  for (const BlockEvent& event : batch.events) {
    const Key key = {event.group, event.hash};
    switch (event.kind) {
      case BlockEvent::Kind::kStored:
        RUDDER_CHECK(tokens.size() >= block_size_, "a stored block without its tokens");
        blocks_.insert_or_assign(key, Block{event, tokens.first(block_size_)});
        tokens = tokens.subspan(block_size_);
        break;
      case BlockEvent::Kind::kRemoved:
        blocks_.erase(key);
        break;
      case BlockEvent::Kind::kCleared:
        blocks_.clear();
        break;
    }
  }
}

std::vector<EventBatch> HeldBlocks::batches(double time_s) const {
  std::vector<EventBatch> batches;
  batches.push_back({.events = {{.kind = BlockEvent::Kind::kCleared}}});
  std::set<Key> written;
  for (const auto& entry : blocks_) write_behind_parents(entry.second, written, batches);
  for (EventBatch& batch : batches) batch.time_s = time_s;
  return batches;
}

void HeldBlocks::write_behind_parents(const Block& block, std::set<Key>& written,
                                      std::vector<EventBatch>& batches) const {
  std::vector<const Block*> chain;  // youngest first
  for (const Block* next = &block; next != nullptr;) {
    const BlockEvent& stored = next->stored;
    if (!written.insert({stored.group, stored.hash}).second) break;
    chain.push_back(next);
    const auto parent = blocks_.find({stored.group, stored.parent});
    next = stored.has_parent && parent != blocks_.end() ? &parent->second : nullptr;
  }
  for (; !chain.empty(); chain.pop_back()) {
    const Block& oldest = *chain.back();
    if (batches.back().events.size() == kMaxBatchEvents) batches.emplace_back();
    EventBatch& batch = batches.back();
    batch.events.push_back(oldest.stored);
    batch.tokens.insert(batch.tokens.end(), oldest.tokens.begin(), oldest.tokens.end());
  }
}

}  // namespace rudder::fleet
