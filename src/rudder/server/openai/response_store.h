// ResponseStore: keeps the answers of /v1/responses, so that clients can fetch them and continue
// from them (`previous_response_id`). It is in memory and bounded: it forgets the response that was
// used longest ago first. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rudder/server/http/byte_charge.h"

namespace rudder::server {

// Its texts are shared with those who read them; ResponseStore::share makes them.
struct StoredResponse {
  int tenant = 0;           // nobody else is told of it
  SharedText document;      // JSON, as GET tells it
  SharedText conversation;  // JSON: the chat messages up to its own, without instructions, or null
  SharedText input;         // JSON: the items that it was asked with
  SharedText asking = nullptr;  // JSON: the conversation's items that ask (asking_items.h), or null
  // Set while it runs in the background; ends it and gives its document then. Such a response is
  // not forgotten.
  std::function<SharedText()> cancel = nullptr;
};

class ResponseStore {
 public:
  // `held` counts the texts for as long as the store or a reader has them.
  ResponseStore(int64_t max_bytes, ByteTotal held)
      : max_bytes_(max_bytes), held_(std::move(held)) {}

  SharedText share(std::string text) const { return share_text(std::move(text), held_); }

  // One that is larger than the bound is forgotten at once.
  void put(const std::string& id, StoredResponse response);
  // Instead of the one that runs in the background, unless it has been removed or cancelled.
  void finish(const std::string& id, StoredResponse response);
  // Ends one that runs in the background: its document then, or null where it does not run.
  SharedText cancel(const std::string& id, int tenant);
  std::optional<StoredResponse> find(const std::string& id, int tenant);
  // False when there is none.
  bool remove(const std::string& id, int tenant);

 private:
  struct Entry {
    StoredResponse response;
    std::list<std::string>::iterator recency;
    int64_t bytes = 0;
  };
  using Entries = std::unordered_map<std::string, Entry>;

  void put_locked(const std::string& id, StoredResponse response);
  void erase_locked(Entries::iterator entry);

  const int64_t max_bytes_;
  const ByteTotal held_;
  std::mutex mutex_;
  Entries entries_;
  std::list<std::string> by_use_;  // the longest unused first
  int64_t bytes_ = 0;
};

// A response on its way into the store.
struct ResponseTurn {
  std::shared_ptr<ResponseStore> store;
  int tenant = 0;
  std::string conversation;    // JSON: the chat messages that it answers, without instructions
  SharedText input;            // JSON: the items of the request
  SharedText asking;           // JSON: the conversation's items that ask (asking_items.h), or null
  bool is_background = false;  // the store holds an entry for it
};

}  // namespace rudder::server
