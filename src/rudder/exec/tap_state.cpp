#include "rudder/exec/tap_state.h"

#include <algorithm>
#include <array>
#include <bit>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;
using tensor::Shape;

// Of staging memory: the programs of a burst of requests, so that they need not wait for the
// device.
constexpr int64_t kMostUploadBytes = int64_t{64} << 20;
constexpr int64_t kLeastUploadBytes = int64_t{64} << 10;
constexpr int64_t kWords = sizeof(tap::TapOp) / sizeof(int32_t);

// Shapes of the table. A table without steering has an empty row, one without capture no set.
struct Shapes {
  Shape points;
  Shape ops;
  Shape vectors;
  Shape latches;
  Shape relays;
  Shape captures;
  Shape patterns;
  Shape pattern_sums;
  Shape ring;
  Shape encoded_rows;
  Shape features;
  Shape carried;
};

Shapes shapes_of(const step::Capacity& capacity) {
  const tap::Limits& taps = capacity.taps;
  const int64_t points = capacity.geometry.num_points();
  const int64_t encoded = taps.max_features > 0 ? tap::kEncodedRows : 0;
  const int64_t ring = std::max<int64_t>(taps.capture_elements * capacity.max_in_flight, 1);
  return {.points = {std::max(taps.num_rows, 1), points, ops::kTapEntryWords},
          .ops = {std::max(taps.num_ops, 1), kWords},
          .vectors = {std::max<int64_t>(taps.num_floats, tap::kVectorAlign)},
          .latches = {int64_t{capacity.num_slots} + 1, tap::kNumLatches, 2},
          .relays = {capacity.max_tokens_per_step, tap::kNumRelays},
          .captures = {std::max(taps.num_capture_sets, 1), points, 2},
          .patterns = {taps.patterns ? taps.num_capture_sets : 0, capacity.geometry.num_layers,
                       ops::kPatternWords},
          .pattern_sums = {taps.patterns ? ring / ops::kPatternSumElements : 0, 2},
          .ring = {ring},
          .encoded_rows = {encoded, capacity.geometry.widest()},
          .features = {encoded, tap::feature_row_floats(taps.max_features)},
          .carried = {encoded > 0 ? capacity.max_tokens_per_step : 0,
                      capacity.geometry.residual_width()}};
}

// Rows that are written at another point than they are read (ops::TapTable::carried).
bool can_be_carried(const tap::Geometry& geometry, int64_t width) {
  return width == geometry.hidden || width == geometry.residual_width();
}

int64_t bytes_of(DType dtype, const Shape& shape) {
  return static_cast<int64_t>(View{nullptr, dtype, shape}.bytes());
}

tap::DictionaryHead head_of(const tap::DictionaryImage& image) {
  RUDDER_CHECK(!image.parts.empty() && image.parts[0].count >= tap::kDictionaryHeadFloats);
  std::array<float, tap::kDictionaryHeadFloats> words;
  std::copy_n(image.parts[0].values.get(), words.size(), words.begin());
  return std::bit_cast<tap::DictionaryHead>(words);
}

// All that the head names lies within the image.
bool is_sound(const tap::DictionaryHead& head, int64_t floats) {
  const auto lies_within = [&](int32_t begin, int64_t count) {
    return begin >= tap::kDictionaryHeadFloats && begin + count <= floats;
  };
  const int64_t features = head.num_features;
  const auto rows = [&](int32_t width) {
    return tap::dictionary_floats(head.is_bf16 != 0, features * width);
  };
  return head.d_in > 0 && head.d_out > 0 && features > 0 && head.k >= 0 &&
         lies_within(head.encoder, rows(head.d_in)) &&
         lies_within(head.decoder, rows(head.d_out)) && lies_within(head.scale, features) &&
         lies_within(head.bias, features) && lies_within(head.gate, features) &&
         lies_within(head.encoder_sum, features) && lies_within(head.output_bias, head.d_out) &&
         (head.skip == 0 || lies_within(head.skip, int64_t{head.d_out} * head.d_in));
}

// The entry of the heads in `share`, which a rank numbers from 0.
ops::PatternEntry pattern_entry(const tap::CapturePattern& pattern, int64_t offset,
                                ops::Share share) {
  ops::PatternEntry entry{.offset = -1, .keys = pattern.keys};
  for (const int32_t head : pattern.heads) {
    if (head < share.begin) ++entry.first_row;
    const int64_t own = head - share.begin;
    if (own < 0 || own >= share.count) continue;
    entry.heads[own / 32] |= 1U << (own % 32);
    entry.offset = static_cast<int32_t>(offset / tap::kCaptureAlign);
  }
  return entry;
}

int32_t moved(int32_t offset, int64_t by) {
  return offset == tap::kNoVector ? offset : static_cast<int32_t>(offset + by);
}

}  // namespace

TapState::TapState(ops::Ops& ops, const step::Capacity& capacity)
    : ops_(ops),
      rank_(ops::rank_of(ops)),
      capacity_(capacity),
      rows_(static_cast<size_t>(std::max(capacity.taps.num_rows, 1))),
      sets_(static_cast<size_t>(std::max(capacity.taps.num_capture_sets, 1))),
      latched_(static_cast<size_t>(capacity.num_slots)) {}

Result<std::unique_ptr<TapState>> TapState::make(ops::Ops& ops, const step::Capacity& capacity) {
  std::unique_ptr<TapState> state(new TapState(ops, capacity));
  RUDDER_TRY_VOID(state->allocate());
  return state;
}

int64_t TapState::device_bytes(const step::Capacity& capacity) {
  if (!capacity.taps.steering() && !capacity.taps.capture()) return 0;
  const Shapes shapes = shapes_of(capacity);
  return bytes_of(DType::kI32, shapes.points) + bytes_of(DType::kI32, shapes.ops) +
         bytes_of(DType::kF32, shapes.vectors) + bytes_of(DType::kI64, shapes.latches) +
         bytes_of(DType::kF32, shapes.relays) + bytes_of(DType::kI32, shapes.captures) +
         bytes_of(DType::kI32, shapes.patterns) + bytes_of(DType::kF32, shapes.pattern_sums) +
         bytes_of(capacity.geometry.dtype, shapes.ring) +
         bytes_of(DType::kF32, shapes.encoded_rows) + bytes_of(DType::kF32, shapes.features) +
         bytes_of(DType::kF32, shapes.carried);
}

Result<void> TapState::allocate() {
  const Shapes shapes = shapes_of(capacity_);
  RUDDER_TRY(table_.points, ops_.allocate(DType::kI32, shapes.points));
  RUDDER_TRY(table_.ops, ops_.allocate(DType::kI32, shapes.ops));
  RUDDER_TRY(table_.vectors, ops_.allocate(DType::kF32, shapes.vectors));
  RUDDER_TRY(table_.latches, ops_.allocate(DType::kI64, shapes.latches));
  RUDDER_TRY(table_.relays, ops_.allocate(DType::kF32, shapes.relays));
  RUDDER_TRY(table_.captures, ops_.allocate(DType::kI32, shapes.captures));
  if (capacity_.taps.patterns) {
    RUDDER_CHECK(ops_.pattern_ops() != nullptr, "{} captures no attention patterns", ops_.name());
    RUDDER_TRY(table_.patterns, ops_.allocate(DType::kI32, shapes.patterns));
    RUDDER_TRY(table_.pattern_sums, ops_.allocate(DType::kF32, shapes.pattern_sums));
  }
  RUDDER_TRY(table_.ring, allocate_ring(shapes.ring));
  if (capacity_.taps.max_features > 0) {
    RUDDER_CHECK(ops_.feature_ops() != nullptr, "{} encodes no dictionaries", ops_.name());
    RUDDER_TRY(table_.encoded_rows, ops_.allocate(DType::kF32, shapes.encoded_rows));
    RUDDER_TRY(table_.features, ops_.allocate(DType::kF32, shapes.features));
    RUDDER_TRY(table_.carried, ops_.allocate(DType::kF32, shapes.carried));
  }
  const Shape fetched = {capacity_.max_in_flight, capacity_.num_slots, tap::kNumLatches, 2};
  RUDDER_TRY(const View staging, ops_.allocate_staging(bytes_of(DType::kI64, fetched)));
  fetched_ = {staging.data, DType::kI64, fetched};
  const int64_t vectors = bytes_of(DType::kF32, shapes.vectors);
  RUDDER_TRY(uploads_,
             UploadRing::make(ops_, std::clamp(vectors, kLeastUploadBytes, kMostUploadBytes)));
  return {};
}

// One for all ranks, where each has a part of a record.
Result<View> TapState::allocate_ring(const Shape& shape) {
  const DType dtype = capacity_.geometry.dtype;
  ops::Comm* const comm = ops::comm_of(ops_);
  if (comm == nullptr || !capacity_.taps.patterns) return ops_.allocate(dtype, shape);
  return comm->shared_memory(dtype, shape);
}

int64_t TapState::ring_begin(size_t flight) const {
  return static_cast<int64_t>(flight) * capacity_.taps.capture_elements;
}

View TapState::ring_part(size_t flight, int64_t elements) const {
  return table_.ring.rows(ring_begin(flight), elements);
}

bool TapState::has_row(int32_t row) const {
  return row == 0 || (row > 0 && row < capacity_.taps.num_rows);
}

bool TapState::has_set(int32_t set) const {
  return set >= 0 && set < capacity_.taps.num_capture_sets && sets_[at(set)].elements > 0;
}

const tap::DictionaryHead& TapState::head_at(const step::TapEdit& edit, int32_t dictionary) const {
  RUDDER_CHECK(dictionary >= 0 && dictionary < std::ssize(edit.dictionaries), "dictionary {}",
               dictionary);
  return dictionaries_.at(edit.dictionaries[at(dictionary)].first_float);
}

bool TapState::is_behind_attention(const tap::Point& point) const {
  return point.layer == capacity_.geometry.num_layers - 1 && point.site >= tap::Site::kAttnOut;
}

Result<void> TapState::apply(const step::StepPlan& plan) {
  for (const step::SlotEdit& slot : plan.slots) RUDDER_TRY_VOID(open_slot(slot.slot.value));
  for (const step::TapEdit& row : plan.tap_edits) RUDDER_TRY_VOID(edit(row));
  for (const step::CaptureEdit& set : plan.capture_edits) RUDDER_TRY_VOID(edit(set));
  return {};
}

// tap.T8
Result<void> TapState::open_slot(int32_t slot) {
  if (latched_[at(slot)] == Latched{}) return {};
  latched_[at(slot)] = {};
  constexpr int64_t kNone[tap::kNumLatches][2] = {};
  return uploads_->copy(table_.latches.rows(slot, 1), kNone);
}

void TapState::fetch_latches(size_t flight, std::span<const FilledLatches> filled) {
  const View to = fetched_.rows(static_cast<int64_t>(flight), 1);
  constexpr int64_t kValues = int64_t{tap::kNumLatches} * 2;
  for (size_t i = 0; i < filled.size(); ++i) {
    const View row = {to.as<int64_t>() + static_cast<int64_t>(i) * kValues, DType::kI64, {kValues}};
    const View latches = table_.latches.rows(filled[i].slot, 1);
    ops_.copy_out(row, {latches.data, DType::kI64, {kValues}});
  }
}

int64_t TapState::clipped_samples(size_t flight, size_t i, uint8_t scores) const {
  constexpr int64_t kValues = int64_t{tap::kNumLatches} * 2;
  const auto* const latches = fetched_.rows(static_cast<int64_t>(flight), 1).as<int64_t>() +
                              static_cast<int64_t>(i) * kValues;
  int64_t clipped = 0;
  for (int32_t latch = 0; latch < tap::kNumLatches; ++latch) {
    if ((scores >> latch & 1) == 0) continue;
    clipped += ops::latch_clipped(latches[2 * latch + 1]);
  }
  return clipped;
}

// Notes those that are new.
void TapState::check_dictionaries(const step::TapEdit& edit) {
  for (const step::TableDictionary& dictionary : edit.dictionaries) {
    if (!dictionary.is_new) {
      RUDDER_CHECK(dictionaries_.contains(dictionary.first_float), "row {} has a dictionary at {}",
                   edit.tap_row, dictionary.first_float);
      continue;
    }
    const int64_t floats = dictionary.image->num_floats();
    const tap::DictionaryHead head = head_of(*dictionary.image);
    RUDDER_CHECK(is_sound(head, floats) && head.num_features <= capacity_.taps.max_features,
                 "a dictionary of {} features, {} fit", head.num_features,
                 capacity_.taps.max_features);
    RUDDER_CHECK(dictionary.first_float >= 0 && dictionary.first_float % tap::kVectorAlign == 0 &&
                     dictionary.first_float + floats <= capacity_.taps.num_floats,
                 "a dictionary at {} of {} floats", dictionary.first_float,
                 capacity_.taps.num_floats);
    dictionaries_[dictionary.first_float] = head;
  }
}

Result<void> TapState::upload_dictionaries(const step::TapEdit& edit) {
  for (const step::TableDictionary& dictionary : edit.dictionaries) {
    if (!dictionary.is_new) continue;
    int64_t begin = dictionary.first_float;
    for (const tap::DictionaryImage::Part& part : dictionary.image->parts) {
      RUDDER_TRY_VOID(uploads_->copy(table_.vectors.rows(begin, part.count), part.values.get()));
      begin += part.count;
    }
  }
  return {};
}

// Where the op stands in its run: `head` is that of the dictionary that the run encodes by.
void TapState::check_encode(const tap::ProgramOp& op, bool is_first,
                            const tap::DictionaryHead* head) const {
  const bool is_encode = op.op.kind == tap::OpKind::kEncode;
  RUDDER_CHECK(is_encode == (is_first && head != nullptr), "a run that encodes begins with that");
  RUDDER_CHECK((op.op.kind == tap::OpKind::kEncoded) == (!is_first && head != nullptr),
               "an op of kind {} in a run of another", static_cast<int32_t>(op.op.kind));
  if (head == nullptr) return;
  const int64_t width = capacity_.geometry.width(op.point);
  const bool is_carried = head->writes_elsewhere != 0 && op.op.lo > 0;
  RUDDER_CHECK(head->d_in == width && (head->writes_elsewhere != 0 || head->d_out == width) &&
                   (!is_carried || can_be_carried(capacity_.geometry, head->d_out)),
               "a dictionary of rows of {} at a row of {}", head->d_in, width);
  RUDDER_CHECK(op.op.feature >= 0 && op.op.feature < head->num_features, "feature {}",
               op.op.feature);
}

void TapState::check_program(const step::TapEdit& edit) const {
  const tap::Program& program = *edit.program;
  const tap::Limits& limits = capacity_.taps;
  const auto num_floats = static_cast<int64_t>(program.vectors.size());
  RUDDER_CHECK(edit.first_op >= 0 &&
                   edit.first_op + static_cast<int64_t>(program.ops.size()) <= limits.num_ops,
               "ops {} + {} of {}", edit.first_op, program.ops.size(), limits.num_ops);
  RUDDER_CHECK(edit.first_float >= 0 && edit.first_float % tap::kVectorAlign == 0 &&
                   edit.first_float + num_floats <= limits.num_floats,
               "floats {} + {} of {}", edit.first_float, num_floats, limits.num_floats);
  int32_t last = 0;
  size_t run_end = 0;                         // of the run of features at hand
  const tap::DictionaryHead* head = nullptr;  // that this run encodes by
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const tap::ProgramOp& op = program.ops[i];
    const bool is_encoded = op.op.kind == tap::OpKind::kEncoded;
    const bool is_encode = op.op.kind == tap::OpKind::kEncode;
    const bool is_feature = op.op.kind == tap::OpKind::kFeature || is_encode || is_encoded;
    const bool is_first = is_feature && i >= run_end;
    if (is_first) run_end = i + at(op.op.run);
    if (is_first || !is_feature) head = is_encode ? &head_at(edit, op.op.v1) : nullptr;
    RUDDER_CHECK(is_first ? op.op.run > 0 : op.op.run == 0, "op {} of row {}: a run of {}", i,
                 edit.tap_row, op.op.run);
    RUDDER_CHECK(i >= run_end || (is_feature && run_end <= program.ops.size() &&
                                  (is_first || op.point == program.ops[i - 1].point)),
                 "op {} of row {} is in a run of features", i, edit.tap_row);
    check_encode(op, is_first, head);
    const bool is_carried = op.op.kind == tap::OpKind::kCarried;
    RUDDER_CHECK(
        !is_carried || (capacity_.taps.max_features > 0 &&
                        can_be_carried(capacity_.geometry, capacity_.geometry.width(op.point))),
        "a carried row at point {}", op.point.index());
    RUDDER_CHECK(is_encoded || is_carried || op.op.v1 != tap::kNoVector ||
                     (is_feature && op.op.v2 != tap::kNoVector),
                 "op {} of row {} has no vector", i, edit.tap_row);
    RUDDER_CHECK(op.op.relay >= 0 && op.op.relay < tap::kNumRelays, "relay {}", op.op.relay);
    RUDDER_CHECK(capacity_.geometry.has(op.point) && op.point.index() >= last, "point {} of row {}",
                 op.point.index(), edit.tap_row);
    last = op.point.index();
    const int64_t width = capacity_.geometry.width(op.point);
    const int32_t first = is_encode ? tap::kNoVector : op.op.v1;
    for (const int32_t vector : {first, op.op.v2, op.op.gate_vector}) {
      RUDDER_CHECK(vector == tap::kNoVector || (vector >= 0 && vector % tap::kVectorAlign == 0 &&
                                                vector + width <= num_floats),
                   "a vector at {} of {} floats, row {}", vector, num_floats, edit.tap_row);
    }
    RUDDER_CHECK(op.op.latch >= 0 && op.op.latch < tap::kNumLatches, "latch {}", op.op.latch);
  }
}

// The program's ops as the device reads them, and where those of each point begin.
void TapState::place_ops(const step::TapEdit& edit, Row& row) {
  moved_.clear();
  for (const tap::ProgramOp& op : edit.program->ops) {
    ops::TapEntry& entry = entries_[at(op.point.index())];
    RUDDER_CHECK(entry.num_ops() < tap::kMaxOpsPerPoint, "row {}: too many ops at point {}",
                 edit.tap_row, op.point.index());
    tap::TapOp& placed = moved_.emplace_back(op.op);
    if (placed.kind == tap::OpKind::kEncode) {
      placed.v1 = static_cast<int32_t>(edit.dictionaries[at(placed.v1)].first_float);
      if (row.encodes.empty() || row.encodes.back() != op.point.index()) {
        row.encodes.push_back(op.point.index());
      }
    } else {
      placed.v1 = moved(placed.v1, edit.first_float);
    }
    placed.v2 = moved(placed.v2, edit.first_float);
    placed.gate_vector = moved(placed.gate_vector, edit.first_float);
    entry.add(edit.first_op + std::ssize(moved_) - 1, placed);
    row.tapped.add(op.point);
    row.only_adds = row.only_adds && entry.adds_at_most() && tap::is_residual(op.point.site);
    const bool is_score = placed.kind == tap::OpKind::kScore;
    const bool is_sense = placed.kind == tap::OpKind::kSense;
    const auto latch = static_cast<uint8_t>(1U << at(placed.latch));
    if (is_score) row.latched.scores |= latch;
    if (is_sense) row.latched.readings |= latch;
    row.scores_behind =
        row.scores_behind || ((is_score || is_sense) && is_behind_attention(op.point));
  }
}

Result<void> TapState::edit(const step::TapEdit& edit) {
  RUDDER_CHECK(edit.tap_row > 0 && edit.tap_row < capacity_.taps.num_rows, "tap row {}",
               edit.tap_row);
  Row& row = rows_[at(edit.tap_row)];
  row = {};
  entries_.assign(at(capacity_.geometry.num_points()), {});
  if (edit.program != nullptr && !edit.program->empty()) {
    check_dictionaries(edit);
    check_program(edit);
    place_ops(edit, row);
    const auto num_ops = static_cast<int64_t>(moved_.size());
    const auto num_floats = static_cast<int64_t>(edit.program->vectors.size());
    RUDDER_TRY_VOID(upload_dictionaries(edit));
    RUDDER_TRY_VOID(uploads_->copy(table_.ops.rows(edit.first_op, num_ops), moved_.data()));
    RUDDER_TRY_VOID(uploads_->copy(table_.vectors.rows(edit.first_float, num_floats),
                                   edit.program->vectors.data()));
  }
  return uploads_->copy(table_.points.rows(edit.tap_row, 1), entries_.data());
}

Result<void> TapState::edit(const step::CaptureEdit& edit) {
  RUDDER_CHECK(edit.capture_set >= 0 && edit.capture_set < capacity_.taps.num_capture_sets,
               "capture set {}", edit.capture_set);
  Set& set = sets_[at(edit.capture_set)];
  set = {};
  flights_.assign(2 * at(capacity_.geometry.num_points()), -1);
  if (edit.set != nullptr) place_points(edit, set);
  RUDDER_TRY_VOID(place_patterns(edit, set));
  // Their rows are whole on each rank.
  if (rank_.index > 0) std::ranges::fill(flights_, -1);
  return uploads_->copy(table_.captures.rows(edit.capture_set, 1), flights_.data());
}

// Where the record's rows lie, and what the set uses: that is the same on every rank.
void TapState::place_points(const step::CaptureEdit& edit, Set& set) {
  for (const tap::CapturePoint& captured : edit.set->points) {
    RUDDER_CHECK(capacity_.geometry.has(captured.point), "point {} of capture set {}",
                 captured.point.index(), edit.capture_set);
  }
  set.elements = tap::record_elements(*edit.set, capacity_.geometry, &offsets_);
  for (size_t i = 0; i < edit.set->points.size(); ++i) {
    const tap::CapturePoint& captured = edit.set->points[i];
    int32_t& flight = flights_[2 * at(captured.point.index()) + (captured.after ? 1 : 0)];
    // The first of two alike would be a hole in the record, and show what others captured.
    RUDDER_CHECK(flight == -1, "point {} twice in capture set {}", captured.point.index(),
                 edit.capture_set);
    flight = static_cast<int32_t>(offsets_[i] / tap::kCaptureAlign);
    set.tapped.add(captured.point);
    set.residual_alone = set.residual_alone && tap::is_residual(captured.point.site);
    set.captures_behind = set.captures_behind || is_behind_attention(captured.point);
  }
}

// Behind the record's rows, whose offsets are known.
Result<void> TapState::place_patterns(const step::CaptureEdit& edit, Set& set) {
  if (!capacity_.taps.patterns) {
    RUDDER_CHECK(edit.set == nullptr || edit.set->patterns.empty(), "capture set {} has patterns",
                 edit.capture_set);
    return {};
  }
  patterns_.assign(at(capacity_.geometry.num_layers), {});
  if (edit.set != nullptr) {
    const size_t num_points = edit.set->points.size();
    for (size_t i = 0; i < edit.set->patterns.size(); ++i) {
      const tap::CapturePattern& pattern = edit.set->patterns[i];
      RUDDER_CHECK(pattern.layer >= 0 && pattern.layer < capacity_.geometry.num_layers &&
                       pattern.keys > 0 && !pattern.heads.empty(),
                   "patterns of layer {} of capture set {}", pattern.layer, edit.capture_set);
      const int32_t all = capacity_.geometry.pattern_heads(pattern.layer);
      const int32_t count = std::min(all, tap::kMaxPatternHeads);
      RUDDER_CHECK(pattern.heads.front() >= 0 && pattern.heads.back() < count &&
                       std::ranges::is_sorted(pattern.heads),
                   "heads up to {} of layer {}", pattern.heads.back(), pattern.layer);
      patterns_[at(pattern.layer)] =
          pattern_entry(pattern, offsets_[num_points + i], ops::equal_share(all, rank_));
      set.tapped.add_patterns(pattern.layer);
      set.residual_alone = false;
    }
  }
  return uploads_->copy(table_.patterns.rows(edit.capture_set, 1), patterns_.data());
}

}  // namespace rudder::exec
