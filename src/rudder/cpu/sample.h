// The sample macro-op of every CPU backend: from logits to tokens and what slots keep of them. What
// is computed and in which order: step/sampling.h, and row by row in sample.cpp. A row's token
// depends on nothing but its row of logits and its parameters: not on its batch, the instruction
// set or the number of threads.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/ops/sample_args.h"
#include "rudder/ops/score_args.h"

namespace rudder::cpu {

// Rows are spread over `pool` when there is one. Called by one thread at a time per pool.
void sample_rows(const ops::SampleArgs& args, ThreadPool* pool = nullptr);

// The score macro-op, likewise.
void score_rows(const ops::ScoreArgs& args, ThreadPool* pool = nullptr);

}  // namespace rudder::cpu
