// Where programs, dictionaries and capture sets are in an executor's tables, for sequences that
// run without an engine (harness.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "rudder/sched/scheduler.h"
#include "rudder/step/plan.h"
#include "rudder/tap/passage.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::metamorphic {

// Rows and capture sets for sequences, one for each content, held for good.
class TapTables {
 public:
  sched::TapLease lease(const std::shared_ptr<const tap::SequenceTaps>& taps,
                        sched::TableEdits& edits) {
    sched::TapLease lease;
    if (taps == nullptr) return lease;
    for (const tap::TapSegment& segment : taps->leased()) {
      lease.rows.push_back(segment.program == nullptr ? 0 : row_of(segment, edits));
    }
    if (taps->capture == nullptr) return lease;
    const auto [set, is_new] =
        sets_.try_emplace(taps->capture.get(), static_cast<int32_t>(sets_.size()));
    if (is_new) edits.captures.push_back({set->second, taps->capture});
    if (is_rare(*taps->capture)) rare_sets_.insert(set->second);
    lease.capture_set = set->second;
    return lease;
  }
  // Whether a step with this work has rare taps (docs/contracts/exec.md).
  bool is_rare(const step::SeqWork& work) const {
    const auto has = [&](int32_t row) { return rare_rows_.contains(row); };
    return has(work.tap_row) || std::ranges::any_of(work.tap_spans, has, &step::TapSpan::tap_row) ||
           (!work.captures.empty() && rare_sets_.contains(work.capture_set));
  }

 private:
  static bool is_rare(const tap::CaptureSet& set) {
    return !set.patterns.empty() ||
           std::ranges::any_of(set.points, [](const auto& at) { return is_rare(at.point.site); });
  }
  static bool is_rare(const tap::Program& program) {
    return std::ranges::any_of(program.ops, [](const tap::ProgramOp& op) {
      return is_rare(op.point.site) || op.op.kind == tap::OpKind::kEncode;
    });
  }
  static bool is_rare(tap::Site site) {
    return (tap::passage(site) & (tap::kMixerEnd | tap::kRouter)) != 0;
  }

  int32_t row_of(const tap::TapSegment& segment, sched::TableEdits& edits) {
    const auto [row, is_new] = rows_.try_emplace({segment.content.low, segment.content.high},
                                                 static_cast<int32_t>(rows_.size()) + 1);
    if (is_new) {
      if (is_rare(*segment.program)) rare_rows_.insert(row->second);
      edits.taps.push_back({row->second, num_ops_, num_floats_, segment.program, {}});
      const auto take = [&](int64_t floats) {
        num_floats_ += (floats + tap::kVectorAlign - 1) / tap::kVectorAlign * tap::kVectorAlign;
      };
      take(std::ssize(segment.program->vectors));
      for (const auto& image : segment.program->dictionaries) {
        const auto [at, is_new_here] =
            dictionaries_.try_emplace({image->key.low, image->key.high}, num_floats_);
        edits.taps.back().dictionaries.push_back({at->second, is_new_here, image});
        if (is_new_here) take(image->num_floats());
      }
      num_ops_ += static_cast<int32_t>(segment.program->ops.size());
    }
    return row->second;
  }

  std::map<std::pair<uint64_t, uint64_t>, int32_t> rows_;
  std::set<int32_t> rare_rows_, rare_sets_;
  std::map<std::pair<uint64_t, uint64_t>, int64_t> dictionaries_;
  std::map<const tap::CaptureSet*, int32_t> sets_;
  int32_t num_ops_ = 0;
  int64_t num_floats_ = 0;
};

}  // namespace rudder::metamorphic
