// keep_paths over a KV cache of any layout: which token of a tree goes where. The backend moves it;
// the rows beside it are moved here.
#pragma once

#include <cstdint>

#include "rudder/ops/args.h"

namespace rudder::cpu {

// Copies the k and v of all heads of the token at one KV slot to another.
using MoveToken = void (*)(const ops::KvLayer& kv, int64_t from, int64_t to);

void keep_paths(const ops::KeepPathsArgs& args, MoveToken move);

}  // namespace rudder::cpu
