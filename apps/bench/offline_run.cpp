#include "bench/offline_run.h"

#include <mutex>
#include <span>
#include <utility>

#include "rudder/base/clock.h"

namespace rudder::apps {

double seconds_between(int64_t from_us, int64_t to_us) {
  return static_cast<double>(to_us - from_us) * 1e-6;
}

Result<std::vector<LocalAnswer>> run_requests(ModelSession& session,
                                              std::vector<engine::RequestParams> requests,
                                              const ProgressFn& progress, double* seconds) {
  const SteadyClock clock;
  std::vector<LocalAnswer> answers(requests.size());
  std::mutex mutex;
  int64_t done = 0;
  const int64_t start = clock.now_us();
  {
    LocalClient client(*session.engine);
    for (size_t i = 0; i < requests.size(); ++i) {
      RUDDER_TRY_VOID(client.submit(std::move(requests[i]), [&, i](LocalAnswer&& answer) {
        std::lock_guard lock(mutex);
        answers[i] = std::move(answer);
        progress(++done, static_cast<int64_t>(answers.size()));
      }));
    }
  }
  *seconds = seconds_between(start, clock.now_us());
  for (const LocalAnswer& answer : answers) {
    if (answer.error) return tl::unexpected<Error>(*answer.error);
  }
  return answers;
}

DecodeWindow decode_window(const std::vector<LocalAnswer>& answers) {
  std::vector<std::span<const int64_t>> times;
  times.reserve(answers.size());
  for (const LocalAnswer& answer : answers) times.emplace_back(answer.token_us);
  return decode_window(times);
}

}  // namespace rudder::apps
