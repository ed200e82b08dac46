#include "rudder/engine/capture_bridge.h"

#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

void CaptureBridge::begin(OpenRequest& request) {
  const RequestParams& params = request.unscheduled->params();
  if (request.taps.capture == nullptr || request.taps.capture->is_for_engine_alone()) return;
  for (int32_t i = 0; i < params.n; ++i) {
    steer::capture::CaptureRequest asked;
    asked.spec = request.taps.capture;
    asked.request_id = params.client_id;
    asked.tenant = params.tenant;
    asked.choice = i;
    asked.prompt_len = request.prompt_tokens;
    asked.stream = params.capture_delivery.events;
    asked.wait = params.capture_delivery.wait;
    asked.on_results = [mailbox = mailbox_, id = request.id,
                        i](steer::capture::CaptureResults&& results) {
      mailbox->capture_news(
          {.id = id, .choice = i, .event = std::nullopt, .results = std::move(results)});
    };
    if (params.capture_delivery.events) {
      asked.on_event = [mailbox = mailbox_, id = request.id,
                        i](steer::capture::CaptureEvent&& event) {
        mailbox->capture_news(
            {.id = id, .choice = i, .event = std::move(event), .results = std::nullopt});
      };
    }
    request.choices[static_cast<size_t>(i)].capture = dispatcher_->begin(std::move(asked));
  }
}

void CaptureBridge::push(const step::StepResult& result,
                         const std::vector<sched::CapturedSequence>& captured,
                         const RequestTable& requests) {
  if (captured.empty()) return;
  by_seq_.assign(result.seqs.size(), {});
  for (const sched::CapturedSequence& one : captured) {
    const RequestTable::Target* target = requests.target(one.id);
    RUDDER_CHECK(target != nullptr, "captured rows of sequence {}, which has ended", one.id.value);
    const int32_t seq = one.seq - (RUDDER_MUTANT(kCaptureToNeighbour) && one.seq > 0);
    by_seq_[static_cast<size_t>(seq)] =
        target->request->choices[static_cast<size_t>(target->choice)].capture;
  }
  dispatcher_->push(result.captured, by_seq_);
}

void CaptureBridge::end(const OpenChoice& choice, bool publish) {
  if (publish) {
    dispatcher_->end(choice.capture);
  } else {
    dispatcher_->cancel(choice.capture);
  }
}

}  // namespace rudder::engine
