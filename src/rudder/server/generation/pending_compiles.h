// PendingCompiles: the calls that wait until the engine has compiled their grammar. The engine may
// outlive the server: after close() it calls nothing of the server any more. Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "rudder/engine/engine.h"

namespace rudder::server {

class PendingCompiles : public std::enable_shared_from_this<PendingCompiles> {
 public:
  // Calls `done` once: with what the engine says, or with kCancelled at close().
  void compile(engine::Engine& engine, const constraint::GrammarSpec& spec, int32_t tenant,
               engine::FormCompiled done);
  void close();

 private:
  void finish(uint64_t id, const Result<engine::FormLease>& compiled);

  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_map<uint64_t, engine::FormCompiled> waiting_;
  uint64_t next_id_ = 1;
  int num_finishing_ = 0;
  bool closed_ = false;
};

}  // namespace rudder::server
