// Dispatcher: takes captured rows from the engine and passes them to consumers. The engine never
// waits for a consumer, except under the operator's policy `block`. Normative text:
// docs/capture.md.
//
//   server thread   spec()      the request's field, checked; the request names it by its number
//   submitting      find()      the spec of that number
//   engine thread   begin(), push(), end()  as the sequence runs
//   dispatch thread copies rows out of the executor's memory, fans them out by mask
//   one thread a consumer, with a queue of its own: a consumer that stalls or fails loses its own
//   rows, and its own results say so
//
// Rows of a request reach a consumer in the order of their positions, each position once, whatever
// the scheduler repeated.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/ids.h"
#include "rudder/base/result.h"
#include "rudder/features/feature_reader.h"
#include "rudder/steer/capture/feature_ask.h"
#include "rudder/steer/capture/kept_rows.h"
#include "rudder/steer/capture/result.h"
#include "rudder/steer/capture/settings.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/steer/capture/stats.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/lens.h"
#include "rudder/tap/site.h"

namespace rudder::steer::capture {

using CaptureId = StrongId<struct CaptureTag, uint64_t>;  // 0: nothing is captured

// One choice of a request. The callbacks run on threads of the dispatcher, must not block and must
// not call it; none runs after the dispatcher is gone.
struct CaptureRequest {
  std::shared_ptr<const CaptureSpec> spec;
  std::string request_id;  // as the answer names it
  int32_t tenant = 0;      // whose it is
  int32_t choice = 0;
  int32_t prompt_len = 0;
  bool stream = false;  // the client takes events
  bool wait = true;     // false: what is not ready at end() is reported as pending
  std::function<void(CaptureResults&&)> on_results;  // exactly once, after end() or cancel()
  std::function<void(CaptureEvent&&)> on_event;      // before on_results; may be empty
};

class Consumer;

class Dispatcher {
 public:
  struct Parts {
    tap::Geometry geometry;
    tap::Limits limits;
    VectorLookup lookup;  // of named probes; may be empty
    // Beside those that the settings name; for tests and for embedding.
    std::vector<std::shared_ptr<Consumer>> consumers;
    std::shared_ptr<tap::Lens> lens = nullptr;  // null: rows are not read through the head
    DictionaryLookup dictionaries = {};         // whose features rows are read as; may be empty
    std::shared_ptr<features::FeatureReader> features = nullptr;  // null: they are read on the host
  };

  // Opens consumers and plugins, compiles the operator's own capture, starts the threads.
  static Result<std::unique_ptr<Dispatcher>> create(Parts parts, const CaptureSettings& settings);
  // Cancels open sessions. Abandons threads that a plugin does not return from.
  virtual ~Dispatcher() = default;

  // Any thread. `field` is the request's "capture", null when it has none; `stop_when` what the
  // engine is to read. The answer is null when nothing is captured of the request. Errors carry the
  // JSON path.
  virtual Result<std::shared_ptr<const CaptureSpec>> spec(const boost::json::value* field,
                                                          std::optional<StopWhen> stop_when) = 0;
  Result<std::shared_ptr<const CaptureSpec>> spec(const boost::json::value* field) {
    return spec(field, std::nullopt);
  }
  // Any thread. The spec of this number; null: nobody holds it any more.
  virtual std::shared_ptr<const CaptureSpec> find(SpecId id) const = 0;
  // Sets SequenceTaps.capture and .captured of a prompt of this length.
  static Result<void> apply(const CaptureSpec& spec, int32_t prompt_len, tap::SequenceTaps& taps);

  // The engine thread's. spec->asks must be valid for prompt_len (apply() said so).
  virtual CaptureId begin(CaptureRequest request) = 0;
  // `by_seq[i]` is the capture of StepPlan.seqs[i]: 0 for a sequence without one, and for one whose
  // row was masked in this step. Gives the rows' memory back as soon as they are copied. Rows
  // without data are counted as lost: the results of their requests say so.
  virtual void push(std::shared_ptr<const tap::CapturedRows> rows,
                    std::span<const CaptureId> by_seq) = 0;
  // No more rows come: consumers finish, then on_results is called.
  virtual void end(CaptureId id) = 0;
  // The same, but nothing is published: every result is an error.
  virtual void cancel(CaptureId id) = 0;

  virtual CaptureStats stats() const = 0;  // any thread
  // Any thread. Rows of finished requests; null: the server keeps none.
  virtual const KeptRows* kept() const { return nullptr; }
};

}  // namespace rudder::steer::capture
