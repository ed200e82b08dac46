#include "rudder/cpu/tap_program.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "rudder/base/check.h"
#include "rudder/tap/capture.h"

namespace rudder::cpu {
namespace {

using ops::TapTable;
using tap::GateKind;
using tap::OpKind;
using tap::TapOp;
using tensor::DType;

// Several sums at once, in an order that depends on the width alone.
double dot_f64(const float* a, const float* b, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += double{a[i + j]} * double{b[i + j]};
  }
  for (; i < count; ++i) sums[i % kSums] += double{a[i]} * double{b[i]};
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// h becomes k h + c1 v1 + c2 v2.
struct Change {
  double k = 1;
  double c1 = 0;
  double c2 = 0;
};

// norm(h) . v = (h . v - mean * sum of v) * by, and what undoes it is c = back.
struct RowScale {
  double mean = 0;
  double by = 1;
  double back = 1;
};

double edited(const TapOp& op, double f) {
  const double v = op.value;
  switch (op.edit) {
    case tap::FeatureEdit::kSet:
      return v;
    case tap::FeatureEdit::kAdd:
      return f + v;
    case tap::FeatureEdit::kMultiply:
      return f * v;
    case tap::FeatureEdit::kMin:
      return std::max(f, v);
    case tap::FeatureEdit::kMax:
      return std::min(f, v);
  }
  RUDDER_CHECK(false, "edit {}", static_cast<int32_t>(op.edit));
}

class TokenProgram {
 public:
  TokenProgram(const TapTable& table, int32_t slot, int32_t since_prompt, float* relays, float* h,
               int64_t width)
      : table_(table),
        slot_(slot),
        since_prompt_(since_prompt),
        relays_(relays),
        h_(h),
        width_(width) {}

  void run(const TapOp& op) {
    if (op.kind == OpKind::kScore) return sample(op);
    const double strength = double{op.strength} * schedule(op);
    if (strength == 0) return;
    const double open = gate(op);
    if (open == 0) return;
    if (const std::optional<Change> change = change_of(op, strength)) apply(op, *change, open);
  }

  // A run: every op reads the row as it is now.
  void run_features(std::span<const TapOp> ops) {
    std::array<float, tap::kMaxOpsPerPoint> factors;
    for (size_t i = 0; i < ops.size(); ++i) factors[i] = feature_factor(ops[i]);
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].v1 == tap::kNoVector) relays_[ops[i].relay] = factors[i];
      if (ops[i].v1 == tap::kNoVector || factors[i] == 0) continue;
      const float* v1 = vector(ops[i].v1);
      for (int64_t j = 0; j < width_; ++j) h_[j] += factors[i] * v1[j];
    }
  }

 private:
  const float* vector(int32_t offset) const { return table_.vectors.as<float>() + offset; }
  double along(int32_t offset) const { return dot_f64(h_, vector(offset), width_); }
  double squared_norm() const { return dot_f64(h_, h_, width_); }

  // The sum of a slot's samples, or their tally behind it.
  std::atomic_ref<int64_t> latch(const TapOp& op, int64_t part) const {
    const int64_t at = (int64_t{slot_} * tap::kNumLatches + op.latch) * 2 + part;
    return std::atomic_ref<int64_t>(table_.latches.as<int64_t>()[at]);
  }

  void sample(const TapOp& op) {
    if (since_prompt_ >= 0) return;
    const auto score = static_cast<float>(along(op.v1));
    latch(op, 0).fetch_add(ops::latch_sample(score), std::memory_order_relaxed);
    latch(op, 1).fetch_add(ops::latch_tally(score), std::memory_order_relaxed);
  }

  double schedule(const TapOp& op) const {
    const double n = since_prompt_;
    switch (op.schedule) {
      case tap::ScheduleKind::kConstant:
        return 1;
      case tap::ScheduleKind::kRamp: {
        if (n >= op.end) return op.to;  // also of a ramp without length
        if (n <= op.begin) return op.from;
        const double done = (n - op.begin) / (static_cast<double>(op.end) - op.begin);
        return op.from + (double{op.to} - op.from) * done;
      }
      case tap::ScheduleKind::kWindow:
        return n >= op.begin && n < op.end ? 1 : 0;
    }
    RUDDER_CHECK(false, "schedule {}", static_cast<int32_t>(op.schedule));
  }

  double gate(const TapOp& op) const {
    if (op.gate == GateKind::kNone) return 1;
    double score = 0;
    if (op.gate == GateKind::kHard || op.gate == GateKind::kSoft) {
      score = along(op.gate_vector);
    } else {
      const int64_t count = ops::latch_samples(latch(op, 1).load(std::memory_order_relaxed));
      if (count == 0 || since_prompt_ < -1) return 0;
      const auto sum = static_cast<double>(latch(op, 0).load(std::memory_order_relaxed));
      score = std::ldexp(sum, -ops::kLatchBits) / static_cast<double>(count);
    }
    const double over = score - op.threshold;
    if (op.gate == GateKind::kHard || op.gate == GateKind::kScoreHard) return over > 0 ? 1 : 0;
    return 1 / (1 + std::exp(-op.sharpness * over));
  }

  RowScale row_scale(tap::FeatureNorm norm) const {
    const auto count = static_cast<double>(width_);
    RowScale scale;
    if (norm == tap::FeatureNorm::kConstantNorm) {
      scale.back = std::sqrt(squared_norm() / count);
      scale.by = scale.back > 0 ? 1 / scale.back : 0;
    } else if (norm == tap::FeatureNorm::kLayerNorm) {
      double sum = 0;
      for (int64_t i = 0; i < width_; ++i) sum += double{h_[i]};
      scale.mean = sum / count;
      double squares = 0;
      for (int64_t i = 0; i < width_; ++i) {
        squares += (double{h_[i]} - scale.mean) * (double{h_[i]} - scale.mean);
      }
      scale.back = width_ > 1 ? std::sqrt(squares / (count - 1)) : 0;
      scale.by = 1 / (scale.back + tap::kLayerNormEpsilon);
    }
    return scale;
  }

  // Of v1, or what goes to a relay.
  float feature_factor(const TapOp& op) const {
    const double strength = double{op.strength} * schedule(op);
    if (strength == 0) return 0;
    const double open = gate(op);
    if (open == 0) return 0;
    if (op.v2 == tap::kNoVector) return static_cast<float>(open * strength * relays_[op.relay]);
    const RowScale scale = row_scale(op.norm);
    const double y = (along(op.v2) - scale.mean * op.sum) * scale.by;
    const double f = y > op.lo ? std::max(op.a * y + op.b, 0.0) : 0;
    if (op.hi > 0 && f <= 0) return 0;
    return static_cast<float>(open * strength * scale.back * (edited(op, f) - f));
  }

  // Nothing where the op leaves the row as it is.
  std::optional<Change> change_of(const TapOp& op, double s) const {
    switch (op.kind) {
      case OpKind::kPatch:
        return Change{1 - s, s, 0};
      case OpKind::kAxis: {
        const double p = along(op.v1);
        const double wanted = std::min(std::max(op.a * p + op.b, double{op.lo}), double{op.hi});
        return Change{1, s * (wanted - p), 0};
      }
      case OpKind::kSwap: {
        const double p = along(op.v1);
        return Change{1, -s * p, s * p};
      }
      case OpKind::kRotate: {
        const double p1 = along(op.v1);
        const double p2 = along(op.v2);
        if (op.lo > 0 && p1 <= 0) return std::nullopt;
        const double r = std::sqrt(p1 * p1 + p2 * p2);
        return Change{1, s * (r * op.a - p1), s * (r * op.b - p2)};
      }
      case OpKind::kAdd:
        return Change{1, s, 0};
      case OpKind::kAddNorm:
        return Change{1, s * std::sqrt(squared_norm()), 0};
      case OpKind::kAddRenorm:
        return renormed(op, s);
      case OpKind::kScore:
      case OpKind::kFeature:
        break;
    }
    RUDDER_CHECK(false, "op {}", static_cast<int32_t>(op.kind));
  }

  std::optional<Change> renormed(const TapOp& op, double s) const {
    const double before = squared_norm();
    const double after = before + 2 * s * along(op.v1) + s * s * op.sum;
    if (op.lo > 0 && after <= before) return Change{1, s, 0};
    if (after <= 0) return std::nullopt;
    const double k = std::sqrt(before / after);
    return Change{k, k * s, 0};
  }

  void apply(const TapOp& op, const Change& change, double open) {
    const auto k = static_cast<float>(1 + open * (change.k - 1));
    const auto c1 = static_cast<float>(open * change.c1);
    const float* v1 = vector(op.v1);
    if (op.kind != OpKind::kSwap && op.kind != OpKind::kRotate) {
      for (int64_t i = 0; i < width_; ++i) h_[i] = k * h_[i] + c1 * v1[i];
      return;
    }
    const auto c2 = static_cast<float>(open * change.c2);
    const float* v2 = vector(op.v2);
    for (int64_t i = 0; i < width_; ++i) h_[i] = h_[i] + c1 * v1[i] + c2 * v2[i];
  }

  const TapTable& table_;
  const int32_t slot_;
  const int32_t since_prompt_;
  float* const relays_;
  float* const h_;
  const int64_t width_;
};

// `offset` is one of TapTable.captures.
void capture(const TapTable& table, int32_t begin, int32_t offset, const float* h, int64_t width) {
  if (offset < 0) return;
  const int64_t at = (int64_t{begin} + offset) * tap::kCaptureAlign;
  RUDDER_CHECK(at >= 0 && at + width <= table.ring.shape.numel(), "a captured row at {}", at);
  if (table.ring.dtype == DType::kF32) {
    std::copy_n(h, width, table.ring.as<float>() + at);
    return;
  }
  auto* to = table.ring.as<tensor::BF16>() + at;
  for (int64_t i = 0; i < width; ++i) to[i] = tensor::to_bf16(h[i]);
}

}  // namespace

void run_taps(const ops::Taps& taps, int64_t token, float* h, int64_t width) {
  if (taps.empty()) return;
  const TapTable& table = *taps.table;
  const ops::TapBatch& batch = *taps.batch;
  const auto of_token = [&](const tensor::View& view) { return view.as<int32_t>()[token]; };
  const int64_t num_points = table.points.shape[1];
  const ops::TapEntry& entry =
      static_cast<const ops::TapEntry*>(batch.entries.data)[token * num_points + taps.point];
  const int32_t* offsets = nullptr;
  int32_t begin = 0;
  if ((entry.flags & ops::TapEntry::kCaptured) != 0) {
    const int64_t set = of_token(batch.capture_set);
    offsets = table.captures.as<int32_t>() + (set * num_points + taps.point) * 2;
    begin = of_token(batch.capture_begin);
  }
  if (offsets != nullptr) capture(table, begin, offsets[0], h, width);
  if (entry.ops != 0) {
    const TapOp* const first = static_cast<const TapOp*>(table.ops.data) + (entry.ops >> 8);
    float* const relays =
        table.relays.as<float>() + int64_t{of_token(batch.token)} * tap::kNumRelays;
    TokenProgram program(table, of_token(batch.slot), of_token(batch.since_prompt), relays, h,
                         width);
    for (int32_t i = 0; i < entry.num_ops();) {
      const int32_t run = std::max(first[i].run, 1);
      if (first[i].kind == OpKind::kFeature) {
        program.run_features({first + i, static_cast<size_t>(run)});
      } else {
        program.run(first[i]);
      }
      i += run;
    }
  }
  if (offsets != nullptr) capture(table, begin, offsets[1], h, width);
}

}  // namespace rudder::cpu
