#include "rudder/server/http/connection_table.h"

#include <algorithm>
#include <utility>

namespace rudder::server {

ConnectionTable::ConnectionTable(int32_t max_connections, int32_t max_per_address)
    : max_(max_connections),
      max_per_address_(max_per_address > 0 ? max_per_address
                                           : std::max<int32_t>(1, max_connections / 2)) {}

std::unique_ptr<ConnectionTable::Entry> ConnectionTable::admit(std::string address) {
  const std::lock_guard lock(mutex_);
  const bool has_room = make_room_locked(address);
  if (!has_room && num_refused_ >= kReserve / 2) return nullptr;
  if (has_room) {
    ++count_;
    if (!address.empty()) ++by_address_[address];
  } else {
    ++num_refused_;
  }
  return std::unique_ptr<Entry>(new Entry(*this, std::move(address), !has_room));
}

bool ConnectionTable::make_room_locked(const std::string& address) {
  const auto same = by_address_.find(address);
  if (same != by_address_.end() && same->second >= max_per_address_) return false;
  // Connections that were asked to close are still open for a moment; the reserve is for them.
  if (count_ - num_asked_ < max_) return true;
  if (idle_.empty() || num_asked_ >= kReserve / 2) return false;
  Entry& oldest = *idle_.front();
  Evictable* const connection = oldest.idle_;
  set_busy_locked(oldest);
  oldest.is_asked_ = true;
  ++num_asked_;
  connection->ask_to_close();
  return true;
}

void ConnectionTable::set_busy_locked(Entry& entry) {
  if (std::exchange(entry.idle_, nullptr) != nullptr) idle_.erase(entry.idle_entry_);
  if (std::exchange(entry.is_asked_, false)) --num_asked_;
}

void ConnectionTable::Entry::set_idle(Evictable* connection) {
  const std::lock_guard lock(table_.mutex_);
  table_.set_busy_locked(*this);
  idle_ = connection;
  idle_entry_ = table_.idle_.insert(table_.idle_.end(), this);
}

void ConnectionTable::Entry::set_busy() {
  const std::lock_guard lock(table_.mutex_);
  table_.set_busy_locked(*this);
}

ConnectionTable::Entry::~Entry() {
  const std::lock_guard lock(table_.mutex_);
  table_.set_busy_locked(*this);
  --(is_refused_ ? table_.num_refused_ : table_.count_);
  if (is_refused_ || address_.empty()) return;
  const auto same = table_.by_address_.find(address_);
  if (--same->second == 0) table_.by_address_.erase(same);
}

}  // namespace rudder::server
