#include "rudder/draft/output_store.h"

#include <algorithm>

namespace rudder::draft {
namespace {

// Waiting to be filed: beyond it outputs are not kept.
constexpr int64_t kMaxPendingTokens = 1 << 20;

}  // namespace

int64_t OutputStore::Shelf::bytes() const {
  return (older ? older->bytes() : 0) + (younger ? younger->bytes() : 0);
}

void OutputStore::add(const std::string& key, std::span<const int32_t> output) {
  if (limits_.max_requests == 0 || output.empty()) return;
  if (pending_tokens_ + std::ssize(output) > kMaxPendingTokens) return;
  pending_tokens_ += std::ssize(output);
  pending_.push_back({key, {output.begin(), output.end()}});
}

void OutputStore::work(int64_t most) {
  while (most > 0 && !pending_.empty()) {
    Pending& next = pending_.front();
    const size_t left = next.output.size() - next.num_filed;
    const size_t count = std::min(left, static_cast<size_t>(most));
    file(next, count);
    most -= static_cast<int64_t>(count);
    pending_tokens_ -= static_cast<int64_t>(count);
    if (count == left) pending_.pop_front();
  }
}

void OutputStore::file(Pending& pending, size_t count) {
  Shelf& shelf = shelves_[pending.key];
  shelf.last_use = ++num_uses_;
  bytes_ -= shelf.bytes();
  const bool begins = pending.num_filed == 0;
  const bool is_full =
      shelf.younger != nullptr &&
      ((begins && shelf.num_younger >= std::max(1, limits_.max_requests / 2)) ||
       shelf.younger->bytes_after(static_cast<int64_t>(count)) > limits_.max_bytes / 2);
  if (is_full) turn_over(shelf);
  if (shelf.younger == nullptr) {
    shelf.younger = std::make_unique<SuffixTree>(limits_.depth);
  } else if (begins) {
    shelf.younger->begin_text();
  }
  if (begins || is_full) ++shelf.num_younger;
  const auto tokens = std::span(pending.output).subspan(pending.num_filed, count);
  for (const int32_t token : tokens) shelf.younger->append(token);
  pending.num_filed += count;
  bytes_ += shelf.bytes();
  keep_bound();
}

// A store of one request has no older tree: both together would be two.
void OutputStore::turn_over(Shelf& shelf) const {
  shelf.older = limits_.max_requests > 1 ? std::move(shelf.younger) : nullptr;
  shelf.younger = nullptr;
  shelf.num_younger = 0;
}

void OutputStore::keep_bound() {
  while (bytes_ > limits_.max_bytes) {
    const auto oldest = std::ranges::min_element(
        shelves_, {}, [](const auto& entry) { return entry.second.last_use; });
    bytes_ -= oldest->second.bytes();
    shelves_.erase(oldest);
  }
}

void OutputStore::add_to(SuffixGuess& guess, const std::string& key,
                         std::span<const int32_t> context) {
  const auto found = shelves_.find(key);
  if (found == shelves_.end()) return;
  Shelf& shelf = found->second;
  shelf.last_use = ++num_uses_;
  for (const SuffixTree* tree : {shelf.younger.get(), shelf.older.get()}) {
    if (tree != nullptr) guess.add_behind(*tree, context);
  }
}

}  // namespace rudder::draft
