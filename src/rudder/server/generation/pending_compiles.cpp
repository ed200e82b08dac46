#include "rudder/server/generation/pending_compiles.h"

#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"

namespace rudder::server {
namespace {

void tell(const engine::FormCompiled& done, const Result<engine::FormLease>& compiled) {
  if (const Result<void> told = contain([&] { done(compiled); }); !told) {
    log_error("who waited for a grammar threw: {}", told.error().to_string());
  }
}

tl::unexpected<Error> shutting_down() {
  return fail(ErrorCode::kCancelled, "the server is shutting down");
}

}  // namespace

void PendingCompiles::compile(engine::Engine& engine, const constraint::GrammarSpec& spec,
                              int32_t tenant, engine::FormCompiled done) {
  std::unique_lock lock(mutex_);
  if (closed_) {
    lock.unlock();
    return tell(done, shutting_down());
  }
  const uint64_t id = next_id_++;
  waiting_.emplace(id, std::move(done));
  lock.unlock();
  engine.compile(spec, tenant,
                 [weak = weak_from_this(), id](const Result<engine::FormLease>& compiled) {
                   if (const auto self = weak.lock()) self->finish(id, compiled);
                 });
}

void PendingCompiles::finish(uint64_t id, const Result<engine::FormLease>& compiled) {
  std::unique_lock lock(mutex_);
  const auto node = waiting_.extract(id);
  if (node.empty()) return;
  ++num_finishing_;
  lock.unlock();
  tell(node.mapped(), compiled);
  lock.lock();
  --num_finishing_;
  idle_.notify_all();
}

void PendingCompiles::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  const auto left = std::exchange(waiting_, {});
  idle_.wait(lock, [this] { return num_finishing_ == 0; });
  lock.unlock();
  for (const auto& [id, done] : left) tell(done, shutting_down());
}

}  // namespace rudder::server
