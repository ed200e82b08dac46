#include "rudder/sched/step_cost.h"

#include <algorithm>
#include <cmath>

namespace rudder::sched {

namespace {

// A step counts half after 45 others of its kind.
constexpr double kDecay = 0.985;
constexpr double kExcessRate = 1.0 / 16;
// A time so many times off what was expected is taken for so much: one hiccup is not a law.
constexpr double kMostSurprise = 3;
constexpr int64_t kWarmUp = 8;
// What may be tried before anything of the kind was seen.
constexpr int64_t kFirstTokens = 32;
constexpr int64_t kFirstPairs = int64_t{1} << 16;
// The terms of a large step are all about 1.
constexpr double kTokenScale = 1e-3, kKeyScale = 1e-5, kPairScale = 1e-6;
constexpr int kSweeps = 8;
constexpr double kOffRate = 1.0 / 8;
// Tiles explain no more than so much.
constexpr double kMostOff = 1.25;
constexpr double kPieceRate = 1.0 / 4;

}  // namespace

void StepShape::add_prompt(int64_t kv_len, int64_t q_len) {
  prompt_tokens += q_len;
  prompt_pairs += q_len * kv_len + q_len * (q_len + 1) / 2;
}

void StepShape::add(const step::SeqWork& work) {
  const bool is_decode = work.q_len == 1 && work.logits == step::LogitsWanted::kLast;
  if (is_decode || work.logits == step::LogitsWanted::kAll) {
    decode_tokens += work.q_len;
    decode_keys += work.kv_len + work.q_len;
  } else {
    add_prompt(work.kv_len, work.q_len);
  }
}

StepCost::Terms StepCost::terms(const StepShape& shape) {
  const auto tokens = static_cast<double>(shape.decode_tokens + shape.prompt_tokens);
  return {1, shape.prompt_tokens > 0 ? 1.0 : 0.0, tokens * kTokenScale,
          static_cast<double>(shape.decode_keys) * kKeyScale,
          static_cast<double>(shape.prompt_pairs) * kPairScale};
}

double StepCost::mean_us(const Terms& x) const {
  double us = 0;
  for (size_t i = 0; i < kTerms; ++i) us += coefficients_[i] * x[i];
  return us;
}

// Of the relative error: both sides are divided by y.
void StepCost::Sums::add(const Terms& x, double y) {
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      products[i][j] = kDecay * products[i][j] + x[i] * x[j] / (y * y);
    }
    targets[i] = kDecay * targets[i] + x[i] / y;
  }
}

StepCost::StepCost() {
  off_by_piece_.fill(1);
}

void StepCost::observe(const StepShape& shape, int64_t us) {
  if (us <= 0) return;
  const Terms x = terms(shape);
  const bool has_prompt = shape.prompt_tokens > 0;
  const double expected = mean_us(x) * (has_prompt ? off_with_prompts(shape) : 1);
  auto y = static_cast<double>(us);
  if (num_observed_ >= kWarmUp && expected > 0) {
    y = std::clamp(y, expected / kMostSurprise, expected * kMostSurprise);
    const double excess = std::max(0.0, y / expected - 1);
    if (has_prompt) excess_ += kExcessRate * (std::min(excess, 1.0) - excess_);
  }
  ++num_observed_;
  most_prompt_tokens_ = std::max(most_prompt_tokens_, shape.prompt_tokens);
  most_prompt_pairs_ = std::max(most_prompt_pairs_, shape.prompt_pairs);
  sums_[has_prompt ? 1 : 0].add(x, y);
  solve();
  const double ratio = y / std::max(1e-9, mean_us(x));
  if (has_prompt) {
    const size_t piece = piece_of(shape);
    if (piece >= kPieces) return;
    const double explained = std::clamp(ratio, 1 / kMostOff, kMostOff);
    off_by_piece_[piece] += kPieceRate * (explained - off_by_piece_[piece]);
    return;
  }
  if (shape.decode_tokens == 0) return;
  most_decode_tokens_ = std::max(most_decode_tokens_, shape.decode_tokens);
  double& off = off_[size_of(shape.decode_tokens)];
  off = off == 0 ? ratio : off + kOffRate * (ratio - off);
}

// Coordinate descent from where it stands: the steps before gave nearly the same equations.
void StepCost::solve() {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kTerms; ++i) {
      double square = 0;
      double rest = 0;
      for (const Sums& sums : sums_) {
        square += sums.products[i][i];
        rest += sums.targets[i];
        for (size_t j = 0; j < kTerms; ++j) {
          if (j != i) rest -= sums.products[i][j] * coefficients_[j];
        }
      }
      if (square > 0) coefficients_[i] = std::max(0.0, rest / square);
    }
  }
}

bool StepCost::is_warm() const {
  return num_observed_ >= kWarmUp;
}

double StepCost::mean_us(const StepShape& shape) const {
  return mean_us(terms(shape));
}

size_t StepCost::size_of(int64_t num_seqs) {
  const double quarters = 4 * std::log2(static_cast<double>(std::max<int64_t>(1, num_seqs)));
  return std::min(kSizes - 1, static_cast<size_t>(quarters));
}

// A size that was not seen is as far off as the next smaller one that was.
double StepCost::decode_us(const StepShape& shape) const {
  double off = 1;
  for (size_t size = size_of(shape.decode_tokens) + 1; size-- > 0;) {
    if (off_[size] == 0) continue;
    off = off_[size];
    break;
  }
  return off * mean_us(shape);
}

int64_t StepCost::trusted_tokens() const {
  return most_decode_tokens_ + std::max<int64_t>(1, most_decode_tokens_ / 3);
}

size_t StepCost::piece_of(const StepShape& shape) {
  return static_cast<size_t>((shape.decode_tokens + shape.prompt_tokens - 1) / kPieceTokens);
}

double StepCost::off_with_prompts(const StepShape& shape) const {
  const size_t piece = piece_of(shape);
  return piece < kPieces ? off_by_piece_[piece] : 1;
}

double StepCost::predict_us(const StepShape& shape) const {
  const double off = shape.prompt_tokens > 0 ? off_with_prompts(shape) : 1;
  return off * mean_us(terms(shape)) * (1 + 2 * excess_);
}

// A step of a few more tokens may take less time, but within a piece more tokens take longer: the
// pieces are tried from the last, and the one that has room for some is halved.
int32_t StepCost::tokens_within(const StepShape& shape, int32_t kv_len, int32_t most,
                                double limit_us) const {
  const int64_t trusted_tokens = std::max(kFirstTokens, 2 * most_prompt_tokens_);
  const int64_t trusted_pairs = std::max(kFirstPairs, 4 * most_prompt_pairs_);
  const auto fits = [&](int64_t tokens) {
    StepShape with = shape;
    with.add_prompt(kv_len, tokens);
    return with.prompt_pairs <= trusted_pairs && predict_us(with) <= limit_us;
  };
  const int64_t before = shape.decode_tokens + shape.prompt_tokens;
  int64_t last = std::min<int64_t>(most, trusted_tokens - shape.prompt_tokens);
  while (last > 0) {
    if (fits(last)) return static_cast<int32_t>(last);
    const int64_t piece_begin = (before + last - 1) / kPieceTokens * kPieceTokens;
    int64_t fitting = std::max<int64_t>(1, piece_begin + 1 - before);
    if (!fits(fitting)) {
      last = fitting - 1;
      continue;
    }
    while (last - fitting > 1) {
      const int64_t tokens = fitting + (last - fitting) / 2;
      (fits(tokens) ? fitting : last) = tokens;
    }
    return static_cast<int32_t>(fitting);
  }
  return 0;
}

}  // namespace rudder::sched
