#include "rudder/sched/spare_records.h"

#include <memory>
#include <utility>

namespace rudder::sched {

StepRecord SpareRecords::take() {
  if (records_.empty()) return {.plan = std::make_shared<step::StepPlan>(), .sequences = {}};
  StepRecord record = std::move(records_.back());
  records_.pop_back();
  return record;
}

void SpareRecords::give_back(StepRecord record) {
  if (record.plan.use_count() != 1) return;
  step::StepPlan& plan = *record.plan;
  for (step::SeqWork& work : plan.seqs) {
    if (work.captures.capacity() > 0) spans_.push_back(std::move(work.captures));
    if (work.append_blocks.empty()) continue;
    for (step::GroupTable& table : work.append_blocks) table.clear();
    tables_.push_back(std::move(work.append_blocks));
  }
  plan.slots.clear();
  plan.seqs.clear();
  plan.tokens.clear();
  plan.tap_edits.clear();
  plan.capture_edits.clear();
  plan.adapter_edits.clear();
  plan.copies_before.clear();
  plan.copies_after.clear();
  plan.record_copies.clear();
  plan.repeat = 1;
  record.sequences.clear();
  record.checkpoints.clear();
  record.committed = 0;
  record.shape = {};
  record.num_draft = 0;
  record.num_accepted = 0;
  record.num_guess = 0;
  record.guess_seqs = 0;
  record.guess_tokens = 0;
  record.waited = false;
  records_.push_back(std::move(record));
}

std::vector<step::GroupTable> SpareRecords::take_tables(size_t num_groups) {
  if (tables_.empty()) return std::vector<step::GroupTable>(num_groups);
  std::vector<step::GroupTable> tables = std::move(tables_.back());
  tables_.pop_back();
  return tables;
}

std::vector<step::CaptureSpan> SpareRecords::take_spans() {
  if (spans_.empty()) return {};
  std::vector<step::CaptureSpan> spans = std::move(spans_.back());
  spans_.pop_back();
  spans.clear();
  return spans;
}

}  // namespace rudder::sched
