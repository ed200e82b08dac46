// Counters of engine processes that follow each other.
#pragma once

#include "rudder/engine/stats.h"

namespace rudder::remote {

// Adds the counters and histograms of `other` to those of `all`, whose gauges stay.
void add_counters(engine::EngineStats& all, const engine::EngineStats& other);

// False: they cannot be added.
bool have_same_buckets(const engine::EngineStats& all, const engine::EngineStats& other);

}  // namespace rudder::remote
