// ConnectionTable: the server's open connections. It bounds how many there are, and how many of one
// address. When it is full, it asks the connection that has been idle longest to close and admits
// the new one. The server owns it; the listener and the sessions call it on any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace rudder::server {

// A connection that can be asked to close so that another one is admitted.
class Evictable {
 public:
  virtual ~Evictable() = default;
  // On any thread, with the table's mutex held: posts to the connection's own thread. By the time
  // that it is seen there, the connection may be busy again, and then goes on.
  virtual void ask_to_close() = 0;
};

class ConnectionTable {
 public:
  // Connections that may be open beyond the bound: refused ones, which the server answers before it
  // closes them, and ones that were asked to close and have not closed yet.
  static constexpr int32_t kReserve = 64;

  // One open connection. It is in the table until it is destroyed.
  class Entry {
   public:
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    // The connection waits for a request and may be asked to close; `connection` stays alive until
    // set_busy() or the entry's end.
    void set_idle(Evictable* connection);
    void set_busy();

    // The table was full: the session tells the client so and closes.
    bool is_refused() const { return is_refused_; }

   private:
    friend class ConnectionTable;
    Entry(ConnectionTable& table, std::string address, bool is_refused)
        : table_(table), address_(std::move(address)), is_refused_(is_refused) {}

    ConnectionTable& table_;
    const std::string address_;
    const bool is_refused_;
    // Guarded by the table's mutex.
    Evictable* idle_ = nullptr;  // null: busy, or asked to close
    std::list<Entry*>::iterator idle_entry_;
    bool is_asked_ = false;
  };

  // `max_per_address` 0: half of all.
  ConnectionTable(int32_t max_connections, int32_t max_per_address);

  // Null: not even to be refused. Connections whose `address` is empty are not counted by address.
  std::unique_ptr<Entry> admit(std::string address);

 private:
  bool make_room_locked(const std::string& address);
  void set_busy_locked(Entry& entry);

  const int32_t max_;
  const int32_t max_per_address_;
  std::mutex mutex_;  // of all below
  int32_t count_ = 0;
  int32_t num_asked_ = 0;    // to close, and still open
  int32_t num_refused_ = 0;  // and still open; not in count_
  std::unordered_map<std::string, int32_t> by_address_;
  std::list<Entry*> idle_;  // the longest idle first
};

}  // namespace rudder::server
