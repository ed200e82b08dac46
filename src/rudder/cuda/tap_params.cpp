#include "rudder/cuda/tap_params.h"

#include <array>
#include <cstddef>

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/program.h"

namespace rudder::cuda {
namespace {

using tap::TapOp;

// The kernels read ops where the host wrote them.
#define RUDDER_SAME_PLACE(field) \
  static_assert(offsetof(TapOpParams, field) == offsetof(TapOp, field))
static_assert(sizeof(TapOpParams) == sizeof(TapOp));
RUDDER_SAME_PLACE(kind);
RUDDER_SAME_PLACE(gate);
RUDDER_SAME_PLACE(schedule);
RUDDER_SAME_PLACE(latch);
RUDDER_SAME_PLACE(v1);
RUDDER_SAME_PLACE(v2);
RUDDER_SAME_PLACE(gate_vector);
RUDDER_SAME_PLACE(strength);
RUDDER_SAME_PLACE(a);
RUDDER_SAME_PLACE(b);
RUDDER_SAME_PLACE(lo);
RUDDER_SAME_PLACE(hi);
RUDDER_SAME_PLACE(norm_squared);
RUDDER_SAME_PLACE(threshold);
RUDDER_SAME_PLACE(sharpness);
RUDDER_SAME_PLACE(begin);
RUDDER_SAME_PLACE(end);
RUDDER_SAME_PLACE(from);
RUDDER_SAME_PLACE(to);
#undef RUDDER_SAME_PLACE
static_assert(sizeof(TapEntryParams) == sizeof(ops::TapEntry));
static_assert(offsetof(TapEntryParams, ops) == offsetof(ops::TapEntry, ops));
static_assert(offsetof(TapEntryParams, vector) == offsetof(ops::TapEntry, vector));
static_assert(offsetof(TapEntryParams, strength) == offsetof(ops::TapEntry, strength));
static_assert(offsetof(TapEntryParams, flags) == offsetof(ops::TapEntry, flags));
static_assert(kTapPlainAdd == ops::TapEntry::kPlainAdd && kTapCaptured == ops::TapEntry::kCaptured);

// ... and know them by the same numbers.
#define RUDDER_SAME_NUMBER(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
RUDDER_SAME_NUMBER(TapKind::kPatch, tap::OpKind::kPatch);
RUDDER_SAME_NUMBER(TapKind::kAxis, tap::OpKind::kAxis);
RUDDER_SAME_NUMBER(TapKind::kSwap, tap::OpKind::kSwap);
RUDDER_SAME_NUMBER(TapKind::kRotate, tap::OpKind::kRotate);
RUDDER_SAME_NUMBER(TapKind::kAdd, tap::OpKind::kAdd);
RUDDER_SAME_NUMBER(TapKind::kAddNorm, tap::OpKind::kAddNorm);
RUDDER_SAME_NUMBER(TapKind::kAddRenorm, tap::OpKind::kAddRenorm);
RUDDER_SAME_NUMBER(TapKind::kScore, tap::OpKind::kScore);
RUDDER_SAME_NUMBER(TapGate::kNone, tap::GateKind::kNone);
RUDDER_SAME_NUMBER(TapGate::kHard, tap::GateKind::kHard);
RUDDER_SAME_NUMBER(TapGate::kSoft, tap::GateKind::kSoft);
RUDDER_SAME_NUMBER(TapGate::kScoreHard, tap::GateKind::kScoreHard);
RUDDER_SAME_NUMBER(TapGate::kScoreSoft, tap::GateKind::kScoreSoft);
RUDDER_SAME_NUMBER(TapSchedule::kConstant, tap::ScheduleKind::kConstant);
RUDDER_SAME_NUMBER(TapSchedule::kRamp, tap::ScheduleKind::kRamp);
RUDDER_SAME_NUMBER(TapSchedule::kWindow, tap::ScheduleKind::kWindow);
#undef RUDDER_SAME_NUMBER

static_assert(kTapLatches == tap::kNumLatches);
static_assert(kTapLatchBits == ops::kLatchBits);
static_assert(kTapCaptureUnit == tap::kCaptureAlign);
static_assert(tap::kVectorAlign % 4 == 0, "vectors are read in 16 bytes");
static_assert(tap::kMaxOpsPerPoint <= 0xff, "the number of ops is the low byte of a word");

// Taps of the points that a kernel passes, in its order.
template <size_t kPoints>
TapParams<kPoints> params_of(const std::array<const ops::Taps*, kPoints>& all) {
  TapParams<kPoints> params;
  const ops::Taps* any = nullptr;
  for (size_t i = 0; i < kPoints; ++i) {
    const ops::Taps& taps = *all[i];
    params.point[i] = taps.empty() ? -1 : taps.point;
    if (taps.empty()) continue;
    RUDDER_CHECK(any == nullptr || (any->table == taps.table && any->batch == taps.batch),
                 "the taps of an op are of one table and batch");
    any = &taps;
  }
  RUDDER_CHECK(any != nullptr, "an op without taps");
  const ops::TapTable& table = *any->table;
  const ops::TapBatch& batch = *any->batch;
  params.table.ops = pointer<TapOpParams>(table.ops);
  params.table.vectors = pointer<float>(table.vectors);
  params.table.latches = pointer<unsigned long long>(table.latches);
  params.table.captures = pointer<int32_t>(table.captures);
  params.table.ring = table.ring.data;
  params.table.num_points = static_cast<int32_t>(table.points.shape[1]);
  params.batch.entries = pointer<TapEntryParams>(batch.entries);
  params.batch.since_prompt = pointer<int32_t>(batch.since_prompt);
  params.batch.slot = pointer<int32_t>(batch.slot);
  params.batch.capture_set = pointer<int32_t>(batch.capture_set);
  params.batch.capture_begin = pointer<int32_t>(batch.capture_begin);
  params.batch.only_adds = batch.only_adds;
  return params;
}

}  // namespace

GatherTapsParams gather_params(const ops::TapTable& table, const ops::TapBatch& batch) {
  GatherTapsParams params;
  params.points = pointer<TapEntryParams>(table.points);
  params.captures = pointer<int32_t>(table.captures);
  params.row = pointer<int32_t>(batch.row);
  params.capture_set = pointer<int32_t>(batch.capture_set);
  params.entries = pointer<TapEntryParams>(batch.entries);
  params.tokens = batch.num_tokens();
  params.num_points = static_cast<int32_t>(table.points.shape[1]);
  return params;
}

bool is_tapped(const ops::ResidualNormArgs& args) {
  return !(args.delta_taps.empty() && args.x_taps[0].empty() && args.x_taps[1].empty() &&
           args.out_taps.empty());
}

TapParams<kResidualPoints> tap_params(const ops::ResidualNormArgs& args) {
  return params_of<kResidualPoints>(
      {&args.delta_taps, &args.x_taps[0], &args.x_taps[1], &args.out_taps});
}

bool is_tapped(const ops::GatedActArgs& args) {
  return !args.taps.empty();
}

TapParams<1> tap_params(const ops::GatedActArgs& args) {
  return params_of<1>({&args.taps});
}

}  // namespace rudder::cuda
