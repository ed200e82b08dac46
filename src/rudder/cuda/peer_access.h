// Peer access: GPUs of one process that read and write each other's memory. Called once at start,
// for those of a group of ranks or of the stages of a pipeline.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/base/result.h"

namespace rudder::cuda {

// kUnsupported, naming the setting `where`: a GPU that is there twice.
Result<void> check_each_its_own(std::span<const int32_t> devices, const char* where);

// Between all pairs of `devices`, which are opened. kUnsupported, naming the setting `where`: a GPU
// that is not there, or two without peer access.
Result<void> enable_peer_access(std::span<const int32_t> devices, const char* where);

}  // namespace rudder::cuda
