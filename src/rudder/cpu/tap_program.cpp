#include "rudder/cpu/tap_program.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/row_scale.h"
#include "rudder/tap/capture.h"

namespace rudder::cpu {
namespace {

using ops::TapTable;
using tap::GateKind;
using tap::OpKind;
using tap::TapOp;
using tensor::DType;

// h becomes k h + c1 v1 + c2 v2.
struct Change {
  double k = 1;
  double c1 = 0;
  double c2 = 0;
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

// v2 says which elements the op is for; other kinds have another use of it.
bool is_for_some(const TapOp& op) {
  const bool can =
      op.kind == OpKind::kPatch || op.kind == OpKind::kAddNorm || op.kind == OpKind::kAddRenorm;
  return can && op.v2 != tap::kNoVector;
}

class TokenProgram {
 public:
  TokenProgram(const TapTable& table, int32_t slot, int32_t since_prompt, float* relays,
               float* carried, float* h, int64_t width)
      : table_(table),
        slot_(slot),
        since_prompt_(since_prompt),
        relays_(relays),
        carried_(carried),
        h_(h),
        width_(width) {}

  void run(const TapOp& op) {
    if (op.kind == OpKind::kScore) return sample(op);
    if (op.kind == OpKind::kSense) return sense(op);
    if (op.kind == OpKind::kExperts) {
      if (op.lo <= 0) choose_experts(op, {h_, static_cast<size_t>(width_)}, true);
      return;
    }
    if (op.kind == OpKind::kCarried) {
      std::copy_n(carried_, width_, h_);
      return;
    }
    const double strength = double{op.strength} * schedule(op);
    if (strength == 0) return;
    const double open = gate(op);
    if (open == 0) return;
    if (const std::optional<Change> change = change_of(op, strength)) apply(op, *change, open);
  }

  // `scores` are the row itself, as logits, or what the router chooses by.
  void choose_experts(const TapOp& op, std::span<float> scores, bool are_logits) const {
    const double strength = double{op.strength} * schedule(op);
    if (strength == 0) return;
    const auto share = static_cast<float>(gate(op) * strength);
    if (share == 0) return;
    const float* const wanted = vector(op.v1);
    const double log_sum = are_logits ? log_of_exponentials(scores) : 0;
    const auto [least, most] = std::ranges::minmax(scores);
    const auto logged = [&](float score) { return static_cast<float>(score - log_sum); };
    const float last = logged(least) - tap::kExpertMargin;
    const float first = logged(most) + tap::kExpertMargin;
    for (size_t e = 0; e < scores.size(); ++e) {
      const float to = wanted[e] > 0 ? first : wanted[e] < 0 ? last : logged(scores[e]);
      scores[e] = share == 1 ? to : scores[e] + share * (to - scores[e]);
    }
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

  // A run of kEncode: `features` are those of the row as it is now.
  void run_encoded(std::span<const TapOp> ops, const DictionaryView& dictionary,
                   std::span<const float> features) {
    const RowScale scale = row_scale(dictionary.head->norm, h_, width_);
    std::array<float, tap::kMaxOpsPerPoint> factors = {};
    for (size_t i = 1; i < ops.size(); ++i) {
      factors[i] = encoded_factor(ops[i], scale, features[static_cast<size_t>(ops[i].feature)]);
    }
    if (ops[0].lo > 0) {
      dictionary.decode(features, scale, h_,
                        dictionary.head->writes_elsewhere != 0 ? carried_ : h_);
    }
    for (size_t i = 1; i < ops.size(); ++i) {
      if (dictionary.head->writes_elsewhere != 0) {
        relays_[ops[i].relay] = factors[i];
      } else if (factors[i] != 0) {
        dictionary.add_decoder_row(ops[i].feature, factors[i], h_);
      }
    }
  }

 private:
  static double log_of_exponentials(std::span<const float> logits) {
    const double most = *std::ranges::max_element(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - most);
    return most + std::log(sum);
  }

  const float* vector(int32_t offset) const { return table_.vectors.as<float>() + offset; }
  double along(int32_t offset) const { return dot_f64(h_, vector(offset), width_); }
  // Of the elements that the op is for.
  double squared_norm(const TapOp& op) const {
    if (!is_for_some(op)) return dot_f64(h_, h_, width_);
    const float* const chosen = vector(op.v2);
    double sum = 0;
    for (int64_t i = 0; i < width_; ++i) {
      if (chosen[i] != 0) sum += double{h_[i]} * double{h_[i]};
    }
    return sum;
  }

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

  void sense(const TapOp& op) {
    if (since_prompt_ < -1) return;
    double read = along(op.v1);
    if (op.hi > 0) read = read > op.lo ? std::max(op.a * read + op.b, 0.0) : 0;
    latch(op, since_prompt_ & 1)
        .store(ops::latch_reading(since_prompt_, static_cast<float>(read)),
               std::memory_order_relaxed);
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
    if (op.gate == GateKind::kControl) return controlled(op);
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

  double controlled(const TapOp& op) const {
    const int32_t before = since_prompt_ - 1;
    const int64_t word = latch(op, before & 1).load(std::memory_order_relaxed);
    if (!ops::is_reading_of(word, before)) return 0;
    const double wanted =
        double{op.sharpness} * (double{op.threshold} - double{ops::reading_value(word)});
    return std::min(std::max(wanted, double{op.from}), double{op.to});
  }

  // Of v1, or what goes to a relay.
  float feature_factor(const TapOp& op) const {
    const double strength = double{op.strength} * schedule(op);
    if (strength == 0) return 0;
    const double open = gate(op);
    if (open == 0) return 0;
    if (op.v2 == tap::kNoVector) return static_cast<float>(open * strength * relays_[op.relay]);
    const RowScale scale = row_scale(op.norm, h_, width_);
    const double y = (along(op.v2) - scale.mean * op.sum) * scale.by;
    const double f = y > op.lo ? std::max(op.a * y + op.b, 0.0) : 0;
    if (op.hi > 0 && f <= 0) return 0;
    return static_cast<float>(open * strength * scale.back * (edited(op, f) - f));
  }

  float encoded_factor(const TapOp& op, const RowScale& scale, double f) const {
    const double strength = double{op.strength} * schedule(op);
    if (strength == 0 || (op.hi > 0 && f <= 0)) return 0;
    return static_cast<float>(gate(op) * strength * scale.back * (edited(op, f) - f));
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
        return Change{1, s * std::sqrt(squared_norm(op)), 0};
      case OpKind::kAddRenorm:
        return renormed(op, s);
      case OpKind::kScore:
      case OpKind::kFeature:
      case OpKind::kEncode:
      case OpKind::kEncoded:
      case OpKind::kCarried:
      case OpKind::kSense:
      case OpKind::kExperts:
        break;
    }
    RUDDER_CHECK(false, "op {}", static_cast<int32_t>(op.kind));
  }

  std::optional<Change> renormed(const TapOp& op, double s) const {
    const double before = squared_norm(op);
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
      if (is_for_some(op)) return apply_where(vector(op.v2), k, c1, v1);
      for (int64_t i = 0; i < width_; ++i) h_[i] = k * h_[i] + c1 * v1[i];
      return;
    }
    const auto c2 = static_cast<float>(open * change.c2);
    const float* v2 = vector(op.v2);
    for (int64_t i = 0; i < width_; ++i) h_[i] = h_[i] + c1 * v1[i] + c2 * v2[i];
  }

  void apply_where(const float* chosen, float k, float c1, const float* v1) {
    for (int64_t i = 0; i < width_; ++i) {
      if (chosen[i] != 0) h_[i] = k * h_[i] + c1 * v1[i];
    }
  }

  const TapTable& table_;
  const int32_t slot_;
  const int32_t since_prompt_;
  float* const relays_;
  float* const carried_;  // null where nothing is encoded
  float* const h_;
  const int64_t width_;
};

// `offset` is one of TapTable.captures; rows are written in `dtype` (tap::row_dtype).
void capture(const TapTable& table, int32_t begin, int32_t offset, std::span<const float> h,
             DType dtype) {
  if (offset < 0) return;
  const int64_t at = (int64_t{begin} + offset) * tap::kCaptureAlign *
                     static_cast<int64_t>(tensor::dtype_bytes(table.ring.dtype));
  const auto bytes = static_cast<int64_t>(h.size() * tensor::dtype_bytes(dtype));
  RUDDER_CHECK(at >= 0 && at + bytes <= static_cast<int64_t>(table.ring.bytes()),
               "a captured row at {}", at);
  void* const to = static_cast<std::byte*>(table.ring.data) + at;
  if (dtype == DType::kF32) {
    std::ranges::copy(h, static_cast<float*>(to));
  } else if (dtype == DType::kI16) {
    std::ranges::transform(h, static_cast<int16_t*>(to),
                           [](float value) { return static_cast<int16_t>(value); });
  } else {
    std::ranges::transform(h, static_cast<tensor::BF16*>(to),
                           [](float value) { return tensor::to_bf16(value); });
  }
}

int32_t of_token(const tensor::View& view, int64_t token) {
  return view.as<int32_t>()[token];
}

const ops::TapEntry& entry_of(const ops::Taps& taps, int64_t token) {
  const int64_t num_points = taps.table->points.shape[1];
  return static_cast<const ops::TapEntry*>(
      taps.batch->entries.data)[token * num_points + taps.point];
}

// The row before the point's ops (part 0), or after them (1).
void capture_row(const ops::Taps& taps, int64_t token, int part, const float* h, int64_t width) {
  if ((entry_of(taps, token).flags & ops::TapEntry::kCaptured) == 0) return;
  const int64_t num_points = taps.table->points.shape[1];
  const int64_t set = of_token(taps.batch->capture_set, token);
  const int32_t* const offsets =
      taps.table->captures.as<int32_t>() + (set * num_points + taps.point) * 2;
  const tap::Site site = tap::Point::at(taps.point).site;
  capture(*taps.table, of_token(taps.batch->capture_begin, token), offsets[part],
          {h, static_cast<size_t>(width)}, tap::row_dtype(site, taps.table->ring.dtype));
}

std::span<const TapOp> ops_of(const ops::Taps& taps, int64_t token) {
  const ops::TapEntry& entry = entry_of(taps, token);
  return {static_cast<const TapOp*>(taps.table->ops.data) + (entry.ops >> 8),
          static_cast<size_t>(entry.num_ops())};
}

TokenProgram program_of(const ops::Taps& taps, int64_t token, float* h, int64_t width) {
  const TapTable& table = *taps.table;
  const int64_t at = of_token(taps.batch->token, token);  // of what the token leaves for later
  float* const carried =
      table.carried.empty() ? nullptr : table.carried.as<float>() + at * table.carried.shape[1];
  return {table,
          of_token(taps.batch->slot, token),
          of_token(taps.batch->since_prompt, token),
          table.relays.as<float>() + at * tap::kNumRelays,
          carried,
          h,
          width};
}

// Up to the first kEncode.
void run_ops(TokenProgram program, std::span<const TapOp> ops) {
  while (!ops.empty() && ops[0].kind != OpKind::kEncode) {
    const auto run = static_cast<size_t>(std::max(ops[0].run, 1));
    if (ops[0].kind == OpKind::kFeature) {
      program.run_features(ops.first(run));
    } else {
      program.run(ops[0]);
    }
    ops = ops.subspan(run);
  }
}

}  // namespace

void DictionaryView::decode(std::span<const float> features, const RowScale& scale, const float* h,
                            float* out) const {
  const auto width = static_cast<size_t>(head->d_out);
  const float* const bias = values + head->output_bias;
  std::vector<double> sums(bias, bias + width);
  for (size_t f = 0; f < features.size(); ++f) {
    if (features[f] == 0) continue;
    add_decoder_row(static_cast<int64_t>(f), double{features[f]}, sums.data());
  }
  for (double& sum : sums) sum = sum * scale.back + scale.mean;
  for (size_t i = 0; head->skip != 0 && i < width; ++i) {
    const float* const row = values + head->skip + i * static_cast<size_t>(head->d_in);
    sums[i] += dot_f64(h, row, head->d_in);
  }
  std::ranges::transform(sums, out, [](double sum) { return static_cast<float>(sum); });
}

void run_taps(const ops::Taps& taps, int64_t token, float* h, int64_t width) {
  if (taps.empty()) return;
  capture_row(taps, token, 0, h, width);
  const ops::TapEntry& entry = entry_of(taps, token);
  if (entry.ops != 0) run_ops(program_of(taps, token, h, width), ops_of(taps, token));
  if ((entry.flags & ops::TapEntry::kEncodes) == 0) capture_row(taps, token, 1, h, width);
}

void run_choices(const ops::Taps& taps, int64_t token, float* h, std::span<float> scores) {
  if (taps.empty() || entry_of(taps, token).ops == 0) return;
  const TokenProgram program = program_of(taps, token, h, std::ssize(scores));
  for (const TapOp& op : ops_of(taps, token)) {
    if (op.kind == OpKind::kExperts && op.lo > 0) program.choose_experts(op, scores, false);
  }
}

bool is_tapped(const ops::Taps& taps, int64_t token) {
  const ops::TapEntry& entry = entry_of(taps, token);
  return entry.ops != 0 || (entry.flags & ops::TapEntry::kCaptured) != 0;
}

std::span<const TapOp> encoded_ops(const ops::Taps& taps, int64_t token) {
  if ((entry_of(taps, token).flags & ops::TapEntry::kEncodes) == 0) return {};
  const std::span<const TapOp> ops = ops_of(taps, token);
  const auto first = std::ranges::find(ops, OpKind::kEncode, &TapOp::kind);
  return ops.subspan(static_cast<size_t>(first - ops.begin()));
}

void run_encoded(const ops::Taps& taps, int64_t token, std::span<const TapOp> run,
                 std::span<const float> features, float* h, int64_t width) {
  program_of(taps, token, h, width)
      .run_encoded(run, dictionary_at(*taps.table, run[0].v1), features);
}

void finish_taps(const ops::Taps& taps, int64_t token, std::span<const TapOp> rest, float* h,
                 int64_t width) {
  run_ops(program_of(taps, token, h, width), rest);
  capture_row(taps, token, 1, h, width);
}

}  // namespace rudder::cpu
