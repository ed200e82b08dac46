// TapeOps: makes a device with graphs out of one without. It records the calls between
// begin_capture and end_capture on a tape, with their arguments at that time, and runs them when
// the tape is replayed: with the host values of the capture and the device memory of the replay. So
// a host value that leaks into a captured step gives a wrong result, without a GPU. Tests only.
#pragma once

#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::testing {

std::unique_ptr<ops::Ops> make_tape_ops(std::unique_ptr<ops::Ops> inner);

}  // namespace rudder::testing
