// AdapterAdder: what adapters add to products, for every CPU backend, on rows in f32. The
// backend owns the one object; the thread of its ops calls it.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/ops/facets.h"

namespace rudder::cpu {

class AdapterAdder final : public ops::AdapterOps {
 public:
  // Null: one thread does all. The pool outlives the object.
  explicit AdapterAdder(ThreadPool* pool) : pool_(pool) {}

  void shrink_adapters(const ops::AdaptArgs& args) override;
  void expand_adapters(const ops::AdaptArgs& args) override;

 private:
  // Of each token; those without an adapter are passed over by `run`.
  template <typename Run>
  void each_token(const ops::AdaptArgs& args, Run&& run);

  ThreadPool* const pool_;
};

}  // namespace rudder::cpu
