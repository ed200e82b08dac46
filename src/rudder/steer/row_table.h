// RowTable: assigns programs to rows of the device's tap table. Sequences of equal content share a
// row; the table counts its holders and keeps the program after the last one until its space is
// needed. The engine thread owns and calls it, except where a function says otherwise.
//
// A row is written again only while no sequence holds it (tap.T2). Edits take effect in the order
// of plans, so a row may be reused as soon as no later plan uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "rudder/base/range_pool.h"
#include "rudder/base/result.h"
#include "rudder/steer/config.h"
#include "rudder/step/plan.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::steer {

class RowTable {
 public:
  struct Stats {
    int32_t rows = 0;    // without row 0
    int32_t held = 0;    // by sequences
    int32_t cached = 0;  // hold a program that nobody uses now
    int32_t pinned = 0;  // programs; `pinned_resident` of them are on the device
    int32_t pinned_resident = 0;
    int64_t floats = 0;
    int64_t floats_used = 0;  // cached ones included
    int64_t hits = 0;         // programs that were there already
    int64_t uploads = 0;      // programs put into edits
    int64_t upload_bytes = 0;
    int64_t evictions = 0;
  };

  explicit RowTable(const tap::Limits& limits);

  // Ok when the programs of one sequence fit into an empty table: then a lease succeeds at the
  // latest when nothing else is held. kInvalidArgument says what is too large, and the limit. Any
  // thread.
  static Result<void> could_ever_fit(const tap::Limits& limits,
                                     std::span<const tap::TapSegment> segments);

  // Rows for all the segments, or none and false: ask again after a release. rows[i] belongs to
  // segments[i], 0 where it has no program. A sequence that waits must not be overtaken by other
  // steered ones for ever: its turn comes when enough of what is held has been released.
  bool lease(std::span<const tap::TapSegment> segments, std::vector<int32_t>& rows);
  // Gives back what a lease gave. No plan that is built later may use these rows for the sequence.
  void release(std::span<const int32_t> rows);

  // Keeps the program on the device while there is room for it: pinned programs are evicted last,
  // only for a lease that nothing else could serve. Counted by key.
  void pin(const KeyedProgram& program);
  void unpin(const tap::ContentKey& key);

  // Edits for the next plan, in order; the caller's vector is appended to.
  bool has_edits() const { return !edits_.empty(); }
  void take_edits(std::vector<step::TapEdit>& edits);

  Stats stats() const;
  // For tests: no two rows share space or content, counts add up, nothing leaked.
  Result<void> check_integrity() const;

 private:
  struct KeyHash {
    size_t operator()(const tap::ContentKey& key) const { return key.low; }
  };
  struct Entry {
    tap::ContentKey key;  // none: the row is free
    int32_t users = 0;    // sequences' segments
    int32_t num_ops = 0;
    int32_t first_op = 0;
    int64_t num_floats = 0;
    int64_t first_float = 0;
    uint64_t last_use = 0;
    std::vector<tap::ContentKey> dictionaries;  // of the program
  };
  // A dictionary that programs encode by; it stays after the last of them until its space is
  // needed.
  struct Kept {
    int64_t first_float = 0;
    int64_t num_floats = 0;
    int32_t rows = 0;  // on the device, whose programs name it
    int32_t held = 0;  // of them, those that sequences hold
    uint64_t last_use = 0;
  };

  int32_t find(const tap::ContentKey& key) const;  // 0: not on the device
  bool is_pinned(const tap::ContentKey& key) const { return pins_.contains(key); }
  bool try_lease(std::span<const tap::TapSegment> segments, std::vector<int32_t>& rows);
  void hold(int32_t row);
  // A row with that program, not held yet; 0: there is no room.
  int32_t place(const tap::ContentKey& key, const std::shared_ptr<const tap::Program>& program,
                bool may_evict_pinned);
  bool evict_one(bool may_evict_pinned);
  void evict(int32_t row);
  void drop_idle_dictionaries();
  // Space for `count` floats, or -1.
  int64_t make_room(int64_t count, bool may_evict_pinned);
  // Where the program's dictionaries are, each counted for one row more; false: there is no room,
  // and `dictionaries` has those that are counted.
  bool place_dictionaries(const tap::Program& program, bool may_evict_pinned,
                          std::vector<step::TableDictionary>& dictionaries);
  void drop(const tap::Program& program, std::span<const step::TableDictionary> dictionaries);
  // Of a program's dictionaries, floats that no held row needs yet.
  int64_t floats_not_held(const tap::Program& program) const;

  tap::Limits limits_;
  std::vector<Entry> rows_;         // [num_rows]
  std::vector<int32_t> free_rows_;  // ascending use from the back
  std::unordered_map<tap::ContentKey, int32_t, KeyHash> by_key_;
  std::unordered_map<tap::ContentKey, int32_t, KeyHash> pins_;  // how often
  std::unordered_map<tap::ContentKey, Kept, KeyHash> dictionaries_;
  RangePool ops_;
  RangePool floats_;
  std::vector<step::TapEdit> edits_;
  uint64_t clock_ = 0;
  int32_t held_ = 0;  // rows with users, and what they take
  int64_t held_ops_ = 0;
  int64_t held_floats_ = 0;
  Stats counts_;
};

}  // namespace rudder::steer
