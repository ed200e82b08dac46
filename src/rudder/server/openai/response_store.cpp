#include "rudder/server/openai/response_store.h"

#include <utility>

namespace rudder::server {
namespace {

constexpr int64_t kEntryBytes = 512;  // of an entry beside its texts

int64_t bytes_of(const StoredResponse& response) {
  int64_t bytes = kEntryBytes;
  for (const SharedText& text :
       {response.document, response.conversation, response.input, response.asking}) {
    if (text != nullptr) bytes += static_cast<int64_t>(text->size());
  }
  return bytes;
}

}  // namespace

void ResponseStore::put(const std::string& id, StoredResponse response) {
  std::lock_guard lock(mutex_);
  put_locked(id, std::move(response));
}

void ResponseStore::finish(const std::string& id, StoredResponse response) {
  std::lock_guard lock(mutex_);
  const auto running = entries_.find(id);
  if (running != entries_.end() && running->second.response.cancel) {
    put_locked(id, std::move(response));
  }
}

SharedText ResponseStore::cancel(const std::string& id, int tenant) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.response.tenant != tenant) return nullptr;
  if (!found->second.response.cancel) return nullptr;
  SharedText document = found->second.response.cancel();
  put_locked(id, {.tenant = tenant,
                  .document = document,
                  .conversation = nullptr,
                  .input = found->second.response.input});
  return document;
}

void ResponseStore::put_locked(const std::string& id, StoredResponse response) {
  if (const auto known = entries_.find(id); known != entries_.end()) erase_locked(known);
  Entry entry;
  entry.bytes = bytes_of(response);
  entry.response = std::move(response);
  entry.recency = by_use_.insert(by_use_.end(), id);
  bytes_ += entry.bytes;
  entries_.emplace(id, std::move(entry));
  for (auto oldest = by_use_.begin(); bytes_ > max_bytes_ && oldest != by_use_.end();) {
    const auto victim = entries_.find(*oldest++);
    if (!victim->second.response.cancel) erase_locked(victim);
  }
}

std::optional<StoredResponse> ResponseStore::find(const std::string& id, int tenant) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.response.tenant != tenant) return std::nullopt;
  by_use_.splice(by_use_.end(), by_use_, found->second.recency);
  return found->second.response;
}

bool ResponseStore::remove(const std::string& id, int tenant) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.response.tenant != tenant) return false;
  erase_locked(found);
  return true;
}

void ResponseStore::erase_locked(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  by_use_.erase(entry->second.recency);
  entries_.erase(entry);
}

}  // namespace rudder::server
