#include "rudder/testing/fake_taps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rudder/base/philox.h"

namespace rudder::testing {

namespace {

template <typename T>
uint64_t mix_bytes(uint64_t hash, const std::vector<T>& values) {
  for (const T& value : values) {
    uint32_t words[sizeof(T) / 4];
    static_assert(sizeof(words) == sizeof(T));
    std::memcpy(words, &value, sizeof(T));
    for (const uint32_t word : words) hash = philox_u64(hash, word);
  }
  return hash;
}

bool overlap(int64_t a_begin, int64_t a_end, int64_t b_begin, int64_t b_end) {
  return a_begin < b_end && b_begin < a_end;
}

}  // namespace

FakeProgram::FakeProgram(const tap::Program* program) {
  if (program == nullptr || program->empty()) return;
  content = mix_bytes(1, program->vectors);
  for (const tap::ProgramOp& op : program->ops) {
    content =
        mix_bytes(philox_u64(content, static_cast<uint64_t>(op.point.index())), std::vector{op.op});
    scheduled = scheduled || op.op.schedule != tap::ScheduleKind::kConstant;
    reads_latch = reads_latch || op.op.gate == tap::GateKind::kScoreHard ||
                  op.op.gate == tap::GateKind::kScoreSoft;
    writes_latch = writes_latch || op.op.kind == tap::OpKind::kScore;
    is_controlled = is_controlled || op.op.kind == tap::OpKind::kSense;
  }
  content |= 1;
}

uint64_t FakeProgram::effect(int32_t since_prompt, uint64_t latch, uint64_t reading) const {
  if (content == 0) return 0;
  if (reads_latch && since_prompt < -1) return 0;  // the gate has not opened
  if (is_controlled && since_prompt < 0) return 0;
  uint64_t effect = content;
  if (scheduled) effect = philox_u64(effect, static_cast<uint64_t>(int64_t{since_prompt}));
  if (reads_latch) effect = philox_u64(effect, latch, 1);
  if (is_controlled) effect = philox_u64(effect, reading, 6);
  return effect;
}

uint64_t latch_sample(uint64_t prefix_hash, int32_t token) {
  return philox_u64(prefix_hash, static_cast<uint64_t>(token), 2);
}

uint64_t reading_of(uint64_t prefix_hash, int32_t token) {
  return philox_u64(prefix_hash, static_cast<uint64_t>(token), 7);
}

uint64_t captured_word(uint64_t token_hash, const tap::CapturePoint& captured) {
  return philox_u64(token_hash, static_cast<uint64_t>(captured.point.index()),
                    captured.after ? 4 : 3);
}

uint64_t captured_word(uint64_t token_hash, const tap::CaptureSet& set, size_t i) {
  if (i < set.points.size()) return captured_word(token_hash, set.points[i]);
  const tap::CapturePattern& pattern = set.patterns[i - set.points.size()];
  const auto numbers = static_cast<uint64_t>(pattern.layer) << 32U;
  return philox_u64(token_hash, numbers + static_cast<uint64_t>(pattern.elements()), 5);
}

std::shared_ptr<const tap::Program> fake_program(uint64_t number, FakeProgramKind kind) {
  auto program = std::make_shared<tap::Program>();
  tap::ProgramOp op;
  op.point = {.layer = 0, .site = tap::Site::kResidPost};
  op.op.v1 = 0;
  op.op.strength = static_cast<float>(number % 1000 + 1);
  if (kind == FakeProgramKind::kScheduled) op.op.schedule = tap::ScheduleKind::kRamp;
  if (kind == FakeProgramKind::kWritesLatch || kind == FakeProgramKind::kUsesLatch) {
    op.op.kind = tap::OpKind::kScore;
  }
  if (kind == FakeProgramKind::kControls) op.op.kind = tap::OpKind::kSense;
  program->ops.push_back(op);
  if (kind == FakeProgramKind::kUsesLatch || kind == FakeProgramKind::kControls) {
    op.op.gate =
        kind == FakeProgramKind::kControls ? tap::GateKind::kControl : tap::GateKind::kScoreHard;
    op.op.kind = tap::OpKind::kAdd;
    op.point.layer += 1;
    program->ops.push_back(op);
  }
  program->vectors.assign(tap::kVectorAlign, static_cast<float>(number));
  return program;
}

std::vector<uint64_t> captured_words(const tap::CapturedRows& rows, const tap::CapturedToken& token,
                                     const tap::CaptureSet& set, const tap::Geometry& geometry) {
  std::vector<int64_t> offsets;
  tap::record_elements(set, geometry, &offsets);
  const auto size = static_cast<int64_t>(tensor::dtype_bytes(rows.dtype));
  std::vector<uint64_t> words(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    std::memcpy(&words[i],
                static_cast<const uint8_t*>(rows.data) + (token.begin + offsets[i]) * size,
                sizeof(words[i]));
  }
  return words;
}

FakeTaps::FakeTaps(const step::Capacity& capacity)
    : capacity_(capacity),
      launched_sets_(static_cast<size_t>(capacity.taps.num_capture_sets)),
      programs_(static_cast<size_t>(capacity.taps.num_rows)),
      extents_(programs_.size()),
      sets_(launched_sets_.size()) {}

void FakeTaps::check(const step::StepPlan& plan, std::vector<std::string>* wrong) {
  for (const step::TapEdit& edit : plan.tap_edits) check_edit(edit, wrong);
  for (const step::CaptureEdit& edit : plan.capture_edits) {
    if (edit.capture_set < 0 || edit.capture_set >= capacity_.taps.num_capture_sets) {
      wrong->push_back(fmt::format("capture set {} does not exist", edit.capture_set));
      continue;
    }
    launched_sets_[static_cast<size_t>(edit.capture_set)] = edit.set;
  }
  int64_t elements = 0;
  for (const step::SeqWork& work : plan.seqs) {
    const size_t known = wrong->size();
    check_work(work, wrong);
    if (wrong->size() > known || work.captures.empty()) continue;
    const auto& set = *launched_sets_[static_cast<size_t>(work.capture_set)];
    for (const step::CaptureSpan& span : work.captures) {
      elements += span.q_len * tap::record_elements(set, capacity_.geometry);
    }
  }
  if (elements > capacity_.taps.capture_elements) {
    wrong->push_back(
        fmt::format("{} elements are captured, {} fit", elements, capacity_.taps.capture_elements));
  }
}

void FakeTaps::check_edit(const step::TapEdit& edit, std::vector<std::string>* wrong) {
  const tap::Limits& limits = capacity_.taps;
  if (edit.tap_row < 1 || edit.tap_row >= limits.num_rows) {
    wrong->push_back(fmt::format("tap row {} cannot be edited", edit.tap_row));
    return;
  }
  if (edit.program == nullptr) return;
  const Extent extent = extent_of(edit);
  if (extent.first_op < 0 || extent.end_op > limits.num_ops || extent.first_float < 0 ||
      extent.end_float > limits.num_floats || extent.first_float % tap::kVectorAlign != 0) {
    wrong->push_back(fmt::format("the program of tap row {} has no room at {}, {}", edit.tap_row,
                                 extent.first_op, extent.first_float));
  }
}

FakeTaps::Extent FakeTaps::extent_of(const step::TapEdit& edit) {
  return {.first_op = edit.first_op,
          .end_op = edit.first_op + std::ssize(edit.program->ops),
          .first_float = edit.first_float,
          .end_float = edit.first_float + std::ssize(edit.program->vectors)};
}

void FakeTaps::check_work(const step::SeqWork& work, std::vector<std::string>* wrong) const {
  const auto bad_row = [&](int32_t row) {
    return row < 0 || row >= std::max(1, capacity_.taps.num_rows);
  };
  int32_t from = 0;
  bool sound = !bad_row(work.tap_row);
  for (const step::TapSpan& span : work.tap_spans) {
    sound = sound && !bad_row(span.tap_row) && span.q_begin > from && span.q_begin < work.q_len;
    from = span.q_begin;
  }
  if (!sound) wrong->push_back(fmt::format("slot {} has unsound tap rows", work.slot.value));
  sound = work.captures.empty() ||
          (work.capture_set >= 0 && work.capture_set < capacity_.taps.num_capture_sets &&
           launched_sets_[static_cast<size_t>(work.capture_set)] != nullptr);
  from = 0;
  for (const step::CaptureSpan& span : work.captures) {
    sound =
        sound && span.q_begin >= from && span.q_len > 0 && span.q_begin + span.q_len <= work.q_len;
    from = span.q_begin + span.q_len;
  }
  if (!sound) wrong->push_back(fmt::format("slot {} has unsound captures", work.slot.value));
}

void FakeTaps::apply(const step::StepPlan& plan) {
  for (const step::TapEdit& edit : plan.tap_edits) {
    const auto row = static_cast<size_t>(edit.tap_row);
    programs_[row] = FakeProgram(edit.program.get());
    extents_[row] = {};
    if (edit.program == nullptr) continue;
    const Extent extent = extent_of(edit);
    for (size_t i = 0; i < extents_.size(); ++i) {
      const Extent& other = extents_[i];
      if (overlap(extent.first_op, extent.end_op, other.first_op, other.end_op) ||
          overlap(extent.first_float, extent.end_float, other.first_float, other.end_float)) {
        programs_[i].content = ~programs_[row].content;  // a token that runs it shows
      }
    }
    extents_[row] = extent;
  }
  for (const step::CaptureEdit& edit : plan.capture_edits) {
    sets_[static_cast<size_t>(edit.capture_set)] = edit.set;
  }
}

const FakeProgram& FakeTaps::program(int32_t tap_row) const {
  static const FakeProgram kIdentity;
  return tap_row == 0 ? kIdentity : programs_[static_cast<size_t>(tap_row)];
}

void FakeTaps::capture(const step::StepPlan& plan, int32_t seq, int32_t q, uint64_t token_hash) {
  const step::SeqWork& work = plan.seqs[static_cast<size_t>(seq)];
  const tap::CaptureSet& set = *sets_[static_cast<size_t>(work.capture_set)];
  if (captured_ == nullptr) {
    captured_ = std::make_shared<tap::CapturedRows>();
    captured_->dtype = capacity_.geometry.dtype;
    buffer_ = std::make_shared<std::vector<uint8_t>>();
  }
  const auto size = static_cast<int64_t>(tensor::dtype_bytes(capacity_.geometry.dtype));
  std::vector<int64_t> offsets;
  const int64_t elements = tap::record_elements(set, capacity_.geometry, &offsets);
  const int64_t begin = std::ssize(*buffer_) / size;
  buffer_->resize(static_cast<size_t>((begin + elements) * size));
  for (size_t i = 0; i < offsets.size(); ++i) {
    const uint64_t word = captured_word(token_hash, set, i);
    std::memcpy(buffer_->data() + (begin + offsets[i]) * size, &word, sizeof(word));
  }
  captured_->tokens.push_back(
      {.seq = seq, .position = work.kv_len + q, .set = work.capture_set, .begin = begin});
}

std::shared_ptr<const tap::CapturedRows> FakeTaps::take_captured() {
  if (captured_ == nullptr) return nullptr;
  captured_->data = buffer_->data();
  captured_->lease = std::move(buffer_);
  return std::exchange(captured_, nullptr);
}

int32_t FakeTaps::tap_row(const step::SeqWork& work, int32_t q) {
  int32_t row = work.tap_row;
  for (const step::TapSpan& span : work.tap_spans) {
    if (span.q_begin <= q) row = span.tap_row;
  }
  return row;
}

bool FakeTaps::is_captured(const step::SeqWork& work, int32_t q) {
  return std::ranges::any_of(work.captures, [&](const step::CaptureSpan& span) {
    return q >= span.q_begin && q < span.q_begin + span.q_len;
  });
}

}  // namespace rudder::testing
