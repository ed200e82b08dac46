#include "rudder/testing/reference_taps.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::testing {
namespace {

using Row = std::vector<double>;

double norm(const Row& a) {
  return std::sqrt(inner(a, a));
}
// a + c b
Row plus(const Row& a, double c, const Row& b) {
  Row out = a;
  for (size_t i = 0; i < out.size(); ++i) out[i] += c * b[i];
  return out;
}

double schedule(const tap::TapOp& op, int32_t n) {
  switch (op.schedule) {
    case tap::ScheduleKind::kConstant:
      return 1;
    case tap::ScheduleKind::kRamp: {
      const double done =
          static_cast<double>(n - op.begin) / static_cast<double>(op.end - op.begin);
      return op.from + (double{op.to} - op.from) * std::clamp(done, 0.0, 1.0);
    }
    case tap::ScheduleKind::kWindow:
      return op.begin <= n && n < op.end ? 1 : 0;
  }
  RUDDER_CHECK(false, "schedule {}", static_cast<int32_t>(op.schedule));
}

double edited_value(const tap::TapOp& op, double f) {
  switch (op.edit) {
    case tap::FeatureEdit::kSet:
      return op.value;
    case tap::FeatureEdit::kAdd:
      return f + op.value;
    case tap::FeatureEdit::kMultiply:
      return f * op.value;
    case tap::FeatureEdit::kMin:
      return std::max(f, double{op.value});
    case tap::FeatureEdit::kMax:
      return std::min(f, double{op.value});
  }
  RUDDER_CHECK(false, "edit {}", static_cast<int32_t>(op.edit));
}

// The row as the dictionary reads it, and the factor that undoes its scale.
std::pair<Row, double> normed(tap::FeatureNorm kind, Row x) {
  const auto count = static_cast<double>(x.size());
  if (kind == tap::FeatureNorm::kConstantNorm) {
    const double scale = norm(x) / std::sqrt(count);
    for (double& value : x) value = scale > 0 ? value / scale : 0;
    return {std::move(x), scale};
  }
  if (kind == tap::FeatureNorm::kLayerNorm) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / count;
    for (double& value : x) value -= mean;
    const double scale = x.size() > 1 ? norm(x) / std::sqrt(count - 1) : 0;
    for (double& value : x) value /= scale + tap::kLayerNormEpsilon;
    return {std::move(x), scale};
  }
  return {std::move(x), 1};
}

// s c (f' - f) v1
Row feature_delta(const tap::TapOp& op, double s, const Row& h, const Row& v1, const Row& v2) {
  const auto [row, scale] = normed(op.norm, h);
  const double y = inner(row, v2);
  const double f = y > op.lo ? std::max(op.a * y + op.b, 0.0) : 0;
  Row none(h.size());
  if (op.hi > 0 && f <= 0) return none;
  return plus(none, s * scale * (edited_value(op, f) - f), v1);
}

Row apply_op(const tap::TapOp& op, double s, const Row& h, const Row& v1, const Row& v2);

// The op on the row of those elements where `chosen` is not 0; the others stay.
Row apply_where(const tap::TapOp& op, double s, const Row& h, const Row& v1, const Row& chosen) {
  Row part;
  Row part_v1;
  for (size_t i = 0; i < h.size(); ++i) {
    if (chosen[i] == 0) continue;
    part.push_back(h[i]);
    part_v1.push_back(v1[i]);
  }
  tap::TapOp of_part = op;
  of_part.v2 = tap::kNoVector;
  const Row changed = apply_op(of_part, s, part, part_v1, Row(part.size()));
  Row all = h;
  for (size_t i = 0, next = 0; i < h.size(); ++i) {
    if (chosen[i] != 0) all[i] = changed[next++];
  }
  return all;
}

bool takes_chosen(tap::OpKind kind) {
  return kind == tap::OpKind::kPatch || kind == tap::OpKind::kAddNorm ||
         kind == tap::OpKind::kAddRenorm;
}

Row apply_op(const tap::TapOp& op, double s, const Row& h, const Row& v1, const Row& v2) {
  if (op.v2 != tap::kNoVector && takes_chosen(op.kind)) return apply_where(op, s, h, v1, v2);
  const double p = inner(h, v1);
  switch (op.kind) {
    case tap::OpKind::kPatch:
      return plus(h, s, plus(v1, -1, h));
    case tap::OpKind::kAxis:
      return plus(h, s * (std::min(std::max(op.a * p + op.b, double{op.lo}), double{op.hi}) - p),
                  v1);
    case tap::OpKind::kSwap:
      return plus(h, s * p, plus(v2, -1, v1));
    case tap::OpKind::kRotate: {
      if (op.lo > 0 && p <= 0) return h;
      const double p2 = inner(h, v2);
      const double r = std::hypot(p, p2);
      return plus(plus(h, s * (r * op.a - p), v1), s * (r * op.b - p2), v2);
    }
    case tap::OpKind::kAdd:
      return plus(h, s, v1);
    case tap::OpKind::kAddNorm:
      return plus(h, s * norm(h), v1);
    case tap::OpKind::kAddRenorm: {
      Row moved = plus(h, s, v1);
      if (norm(moved) == 0) return h;
      if (op.lo > 0 && norm(moved) <= norm(h)) return moved;
      return plus(Row(h.size()), norm(h) / norm(moved), moved);
    }
    case tap::OpKind::kScore:
    case tap::OpKind::kSense:
      return h;
    case tap::OpKind::kFeature:
      return plus(h, 1, feature_delta(op, s, h, v1, v2));
    case tap::OpKind::kExperts:  // reference_op()
    case tap::OpKind::kEncode:   // tests/metamorphic/encode_test.cpp
    case tap::OpKind::kEncoded:
    case tap::OpKind::kCarried:
      break;
  }
  RUDDER_CHECK(false, "op {}", static_cast<int32_t>(op.kind));
}

}  // namespace

std::vector<double> reference_chosen_scores(std::vector<double> scores,
                                            std::span<const double> wanted) {
  const auto [least, most] = std::ranges::minmax(scores);
  for (size_t e = 0; e < scores.size(); ++e) {
    if (wanted[e] > 0) scores[e] = most + double{tap::kExpertMargin};
    if (wanted[e] < 0) scores[e] = least - double{tap::kExpertMargin};
  }
  return scores;
}

std::vector<double> reference_chosen_logits(std::vector<double> logits,
                                            std::span<const double> wanted) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  for (double& logit : logits) logit -= std::log(sum);
  return reference_chosen_scores(std::move(logits), wanted);
}

double inner(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Row reference_op(const tap::TapOp& op, std::span<const float> vectors, Row h, int32_t n,
                 ReferenceLatches& latches) {
  const auto vector = [&](int32_t offset) {
    if (offset == tap::kNoVector) return Row(h.size());
    const auto values = vectors.subspan(static_cast<size_t>(offset), h.size());
    return Row(values.begin(), values.end());
  };
  const Row v1 = vector(op.v1);
  Row& samples = latches[static_cast<size_t>(op.latch)];
  if (op.kind == tap::OpKind::kScore) {
    if (n < 0) samples.push_back(inner(h, v1));
    return h;
  }
  if (op.kind == tap::OpKind::kSense) {
    const double p = inner(h, v1);
    const double f = p > op.lo ? std::max(op.a * p + op.b, 0.0) : 0;
    if (n >= -1) samples.insert(samples.end(), {static_cast<double>(n), op.hi > 0 ? f : p});
    return h;
  }
  const double s = op.strength * schedule(op, n);
  double gate = 1;
  if (op.gate == tap::GateKind::kControl) {
    gate = 0;
    for (size_t i = 0; i + 1 < samples.size(); i += 2) {
      if (samples[i] != n - 1) continue;
      const double wanted = op.sharpness * (op.threshold - samples[i + 1]);
      gate = std::min(std::max(wanted, double{op.from}), double{op.to});
    }
  } else if (op.gate != tap::GateKind::kNone) {
    const bool is_latched =
        op.gate == tap::GateKind::kScoreHard || op.gate == tap::GateKind::kScoreSoft;
    if (is_latched && (samples.empty() || n < -1)) return h;
    const double score = is_latched ? std::accumulate(samples.begin(), samples.end(), 0.0) /
                                          static_cast<double>(samples.size())
                                    : inner(h, vector(op.gate_vector));
    const bool is_hard = op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kScoreHard;
    gate = is_hard ? (score - op.threshold > 0 ? 1 : 0)
                   : 1 / (1 + std::exp(-op.sharpness * (score - op.threshold)));
  }
  if (op.kind == tap::OpKind::kExperts) {
    if (op.lo > 0) return h;
    const Row to = reference_chosen_logits(h, v1);
    return gate * s == 1 ? to : plus(h, gate * s, plus(to, -1, h));  // equal scores stay equal
  }
  return plus(h, gate, plus(apply_op(op, s, h, v1, vector(op.v2)), -1, h));
}

Row reference_program(const tap::Program& program, tap::Point point, Row h, int32_t n,
                      ReferenceLatches& latches, ReferenceRelays* relays) {
  Row before;  // the row that the ops of a run read
  for (const tap::ProgramOp& op : program.ops) {
    if (op.point != point) continue;
    if (op.op.kind != tap::OpKind::kFeature) {
      h = reference_op(op.op, program.vectors, std::move(h), n, latches);
      continue;
    }
    if (op.op.run > 0) before = h;
    tap::TapOp whole = op.op;
    const auto relay = static_cast<size_t>(op.op.relay);
    if (op.op.v1 == tap::kNoVector) whole.v1 = op.op.v2;
    if (op.op.v2 == tap::kNoVector) {
      whole.kind = tap::OpKind::kAdd;
      whole.strength *= static_cast<float>(relays->at(relay));
    }
    const Row change = plus(reference_op(whole, program.vectors, before, n, latches), -1, before);
    if (op.op.v1 != tap::kNoVector) {
      h = plus(h, 1, change);
      continue;
    }
    const auto v2 = std::span(program.vectors).subspan(static_cast<size_t>(op.op.v2), h.size());
    const Row along(v2.begin(), v2.end());
    relays->at(relay) = inner(change, along) / inner(along, along);
  }
  return h;
}

}  // namespace rudder::testing
