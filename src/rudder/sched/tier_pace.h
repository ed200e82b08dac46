// TierPace: what fetching a record and computing a token of a prompt were seen to take, and so
// which of the two is to be done. What was not seen yet is tried; what does not pay is tried now
// and then, since machines change. Internal to the room; engine thread.
#pragma once

#include <cstdint>

#include "rudder/sched/step_cost.h"

namespace rudder::sched {

class TierPace {
 public:
  // Computing `tokens` of a prompt takes longer than fetching so many records, or it is time to see
  // whether it still does not.
  bool pays(int64_t host_records, int64_t files, int64_t tokens) const {
    const double fetch_us =
        static_cast<double>(host_records) * host_us_ + static_cast<double>(files) * file_us_;
    const bool is_known =
        token_us_ > 0 && (host_records == 0 || host_us_ > 0) && (files == 0 || file_us_ > 0);
    if (!is_known || fetch_us < static_cast<double>(tokens) * token_us_) return true;
    return declined_ >= kTryEvery;
  }
  // Of a sequence that is admitted: what pays() said is done.
  void note_declined() { ++declined_; }
  void note_taken() { declined_ = 0; }

  void note_fetch(bool is_file, int64_t us) {
    mix(is_file ? file_us_ : host_us_, static_cast<double>(us > 0 ? us : 1));
  }
  // Of a step most of whose tokens are of prompts.
  void note_step(const StepShape& shape, int64_t device_us) {
    if (device_us <= 0 || shape.prompt_tokens <= shape.decode_tokens) return;
    mix(token_us_, static_cast<double>(device_us) / static_cast<double>(shape.prompt_tokens));
  }

 private:
  static constexpr int32_t kTryEvery = 63;
  static void mix(double& mean, double seen) {
    constexpr double kShare = 0.1;
    mean = mean == 0 ? seen : mean + kShare * (seen - mean);
  }

  double host_us_ = 0;    // a record from host memory
  double file_us_ = 0;    // one from a file
  double token_us_ = 0;   // of a prompt, computed
  int32_t declined_ = 0;  // since one was taken
};

}  // namespace rudder::sched
