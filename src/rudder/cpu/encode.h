// The macro-op encode on the CPU: gathers the tokens that ask for it, a batch of rows and one
// dictionary at a time, and runs their programs. A row's result does not depend on its batch: each
// feature is one sum in fp64. Scratch memory is the tap table's.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/ops/tap_args.h"

namespace rudder::cpu {

// x is f32. `pool` may be null.
void encode_rows(const ops::EncodeArgs& args, ThreadPool* pool);

}  // namespace rudder::cpu
