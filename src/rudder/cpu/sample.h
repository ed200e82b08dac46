// The sample and score macro-ops of every CPU backend: from logits to tokens and to the state of
// slots. step/sampling.h has the formulas and their order, sample.cpp the computation of one row. A
// row's token depends only on its row of logits and its parameters, not on its batch, the
// instruction set or the number of threads.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/ops/sample_args.h"
#include "rudder/ops/score_args.h"

namespace rudder::cpu {

// Rows are spread over `pool` when there is one. Called by one thread at a time per pool.
void sample_rows(const ops::SampleArgs& args, ThreadPool* pool = nullptr);

// The score macro-op; threads as above.
void score_rows(const ops::ScoreArgs& args, ThreadPool* pool = nullptr);

}  // namespace rudder::cpu
