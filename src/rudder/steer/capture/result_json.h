// Writes what was captured into answers: numbers as text, rows as base64 in the packed form of
// steering vectors. Whoever writes an answer calls it; nothing else in the process reads or makes
// that form. Format: docs/capture.md. Pure functions; any thread.
#pragma once

#include <string>

#include "rudder/steer/capture/result.h"

namespace rudder::steer::capture {

// The value of `capture_results`: {consumer: {"status", "error", "payload"}} as JSON text.
std::string results_json(const CaptureResults& results);

// One token's values: {"position": …, "rows": {…}, "norms": {"resid_post.10": …}, "probes": {…}}.
void append_event_values(std::string& out, const CaptureEvent& event);

}  // namespace rudder::steer::capture
