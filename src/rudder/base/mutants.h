// Seeded bugs: each names one fault that the simulator has to find. RUDDER_MUTANT(kX) is false at
// compile time in every normal build; in the mutation test's own build (RUDDER_MUTANTS=1) it is
// true while kX is the mutant chosen at start. A mutant is one condition at the place of the fault.
#pragma once

#include <cstdint>

namespace rudder {

enum class Mutant : uint8_t {
  kNone,
  // kv and sched.
  kFreeInFlight,                // a cancel frees blocks that a step in flight still names
  kDoubleFree,                  // a block is released twice when its sequence retires
  kMissedDecrefOnPreempt,       // preemption forgets one block
  kHashWithoutSalt,             // tenants share prefix blocks
  kHashWithoutParent,           // equal tokens after different prefixes share a block
  kHashWithoutCompare,          // a key collision is taken for a hit
  kBlockEdgeOffByOne,           // no block is added for the first token past a full block
  kPublishBeforeCompute,        // a block is shared while the step that writes it is in flight
  kPublishPartialBlock,         // a block is shared before its last token is written
  kPublishNumerical,            // blocks of a row that ended in NaN stay shared
  kEvictInUse,                  // a prefix hit leaves its blocks on the eviction list
  kSlotReuseWithoutGeneration,  // a slot is reopened under the generation it had
  kPreemptDropsToken,           // a resumed sequence forgets the last token it handed out
  kLateTokenKept,               // a token in flight at finish() is handed out
  kPlanPastMaxLen,              // a row that must end in flight is planned again
  kStarvation,                  // admission takes the newest first
  kCounterUnderflow,            // the gauge of waiting tokens is decremented twice
  // engine.
  kStopStringRace,        // text behind a stop string is handed out
  kAdmissionNotReleased,  // a cancelled request keeps its place in the bounded queue
  kDoubleFinish,          // a choice gets two last events
  kDrainAdmits,           // a request is accepted while draining
  kLostWakeup,            // a submit to an idle engine does not wake it
};

}  // namespace rudder

#if defined(RUDDER_MUTANTS) && RUDDER_MUTANTS
namespace rudder {
inline Mutant active_mutant = Mutant::kNone;  // set before any thread is started
}
#define RUDDER_MUTANT(name) (::rudder::active_mutant == ::rudder::Mutant::name)
#else
#define RUDDER_MUTANT(name) false
#endif
