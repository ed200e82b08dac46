// TapeOps: a device with graphs, made of one without. What is called between begin_capture and
// end_capture goes on a tape, its arguments as they are then, and runs when the tape is replayed:
// with the host values of the capture and whatever the device memory then holds. A host value that
// leaks into a captured step shows as a wrong result, without a GPU. Tests only.
#pragma once

#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::testing {

std::unique_ptr<ops::Ops> make_tape_ops(std::unique_ptr<ops::Ops> inner);

}  // namespace rudder::testing
