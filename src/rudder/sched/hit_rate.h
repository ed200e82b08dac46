// HitRate: of the last few cases, how many were hits. Plain data.
#pragma once

namespace rudder::sched {

struct HitRate {
  float tries = 0;
  float hits = 0;

  // Cases before this one count `keep` times.
  void note(bool is_hit, float keep) {
    tries = keep * tries + 1;
    hits = keep * hits + (is_hit ? 1.0f : 0.0f);
  }
  // As if two cases more had gone as `prior` says.
  float estimate(float prior) const { return (hits + 2 * prior) / (tries + 2); }
};

}  // namespace rudder::sched
