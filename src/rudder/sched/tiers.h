// Tiers: what of the cached prefixes lies behind the device, in host memory and in files, and which
// copies of records (step/records.h) the plans carry. It says how far a waiting sequence's prefix
// goes on there, whether fetching that takes less time than computing it, and what is stored.
// Scheduler owns it; Prompts asks it. Internal to the room; engine thread. Normative text:
// docs/contracts/cache.md, "Tiers".
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cache/cached_nodes.h"
#include "rudder/cache/tier_index.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/state.h"
#include "rudder/sched/stats.h"
#include "rudder/sched/step_cost.h"
#include "rudder/sched/tier_pace.h"
#include "rudder/sched/tier_watch.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"

namespace rudder::sched {

class Tiers {
 public:
  // What lies behind the device of a sequence's prefix, from the end of its match on.
  struct Reach {
    struct Piece {
      step::RecordKey key;
      step::RecordParts parts = 0;  // of the record
      step::RecordParts taken = 0;  // of these, what the sequence needs
      bool is_file = false;
    };
    std::vector<Piece> pieces = {};  // one a block
    int32_t size() const { return static_cast<int32_t>(pieces.size()); }
    bool empty() const { return pieces.empty(); }
    int32_t num_blocks() const;  // that it takes, of all groups
  };

  // `capacity`, `settings` and `blocks` outlive this.
  Tiers(const step::Capacity& capacity, const SchedSettings& settings, Blocks& blocks);

  bool empty() const { return capacity_.tiers.empty(); }
  // Copies on their way.
  int32_t size() const { return static_cast<int32_t>(copies_.size()); }
  // A plan may begin copies though it runs nothing.
  bool wants_plan() const {
    return size() > 0 || !writes_.empty() || !erases_.empty() || may_store();
  }
  // What lies in files from the start, before the first sequence.
  void add_stored(std::span<const step::StoredRecord> stored);

  // The longest way on from `match`, whose tables are `found`; empty where there is none, where it
  // would take longer to fetch than to compute, where there are not as many blocks, or while
  // nothing is begun.
  Reach find(Sequence& sequence, const cache::Match& match, const cache::BlockTables& found);
  // The sequence, which holds its match and a state, is admitted: it gets blocks for what it
  // reaches, and the plan copies it there.
  void begin(Sequence& sequence, const Reach& reach, step::StepPlan& plan);
  // Copies to host memory and to files.
  void plan(step::StepPlan& plan);

  // Of the sequence so many blocks are shared now: each block that is used for the
  // SchedSettings::store_uses'th time is to be stored.
  void note_shared(Sequence& sequence);
  // What the sequence read or wrote is not trusted (kv.I7).
  void distrust(Sequence& sequence);
  // A copy has ended. The sequence whose last load it was; null: none's.
  Sequence* take_done(const step::RecordDone& done);
  // What steps take says what computing a prompt's token does.
  void note_step(const StepShape& shape, int64_t device_us) { pace_.note_step(shape, device_us); }

  // Nothing is begun until it is let go on: the engine comes to rest.
  void pause(bool pauses) { is_paused_ = pauses; }
  void forget_all();
  void drop_all();  // the executor is dead
  // The watcher was told that nothing is cached. With `leaves_files` records are of other weights
  // now, under a name that only this process knows: none goes to a file.
  void note_cleared(bool leaves_files) {
    watch_.clear();
    has_files_ = has_files_ && !leaves_files;
  }
  // What the watcher of the prefix cache was told of and is still there, on the device too.
  std::vector<cache::CachedBlock> watched() const;

  void add_to(SchedStats* stats) const;
  // What copies on their way hold on the device.
  std::vector<cache::NodeObjects> held() const;
  Result<void> check() const;

 private:
  struct Copy {
    step::RecordMove move = step::RecordMove::kStore;
    cache::TierKey key;
    step::RecordParts parts = 0;
    step::RecordId placement = step::kNoRecord;  // of a write that waits
    cache::NodeObjects held = {};                // of a store
    cache::CachedBlock block = {};
    std::vector<int32_t> tokens = {};
    Sequence* sequence = nullptr;  // of a load

    // For who watches, as long as this lives.
    cache::CachedBlock told() const {
      cache::CachedBlock with_tokens = block;
      with_tokens.tokens = tokens;
      return with_tokens;
    }
  };
  struct Wanted {
    cache::NodeRef node;
    cache::TierKey key;
  };

  cache::TierKey key_of(Sequence& sequence, int32_t block) const;
  step::RecordParts parts_of(const cache::NodeObjects& objects) const;
  bool goes_on(const Reach& reach, int32_t from, std::span<const int32_t> there_from) const;
  void take_needed(Reach& reach, int32_t from) const;
  step::RecordCopy& add_copy(step::StepPlan& plan, Copy copy);
  bool may_store() const;
  void plan_store(const Wanted& wanted, step::StepPlan& plan);
  void end_store(Copy& copy, bool ok);
  void end_load(Copy& copy, const step::RecordDone& done);
  void take_lost();

  const step::Capacity& capacity_;
  const SchedSettings& settings_;
  Blocks& blocks_;
  cache::CachedNodes nodes_;
  cache::TierIndex index_;
  TierPace pace_;
  std::unordered_map<int64_t, Copy> copies_;  // on their way, by id
  int64_t last_id_ = 0;
  int32_t num_stores_ = 0;  // of them
  std::deque<Wanted> wanted_;
  std::deque<Copy> writes_;   // to be begun; their records are pinned
  std::vector<Copy> erases_;  // likewise
  TierWatch watch_;
  std::unordered_map<cache::TierKey, int32_t, cache::TierKeyHash> uses_;  // begun anew when full
  bool is_paused_ = false;
  bool has_files_ = false;
  TierStats stats_;
};

}  // namespace rudder::sched
