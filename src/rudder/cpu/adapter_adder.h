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

  int64_t mid_floats(int64_t num_tokens, int64_t mid_width) const override {
    return num_tokens * mid_width;
  }
  void add_adapters(const ops::AddAdaptersArgs& args) override;

 private:
  ThreadPool* const pool_;
};

}  // namespace rudder::cpu
