#include "rudder/exec/head_lens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/step/sampling.h"

namespace rudder::exec {
namespace {

using steer::capture::LensToken;
using tensor::DType;
using tensor::Shape;

// Enough that the head's weights are not read again for every row.
constexpr int32_t kRowsAtOnce = 16;
constexpr int64_t kScoredInts = sizeof(ops::SampledToken) / sizeof(int32_t);
constexpr int64_t kTopInts = sizeof(ops::TopLogprob) / sizeof(int32_t);

}  // namespace

Result<std::unique_ptr<HeadLens>> HeadLens::make(std::unique_ptr<ops::Ops> ops,
                                                 const model::ModelSpec& spec,
                                                 const model::Weights& weights) {
  RUDDER_CHECK(ops->act_dtype() == DType::kF32 && weights.head.x_dtype == DType::kF32,
               "the lens reads rows of f32");
  std::unique_ptr<HeadLens> lens(new HeadLens(std::move(ops), spec, weights));
  RUDDER_TRY_VOID(lens->allocate());
  return lens;
}

int64_t HeadLens::device_bytes(const model::ModelSpec& spec) {
  const int64_t row =
      2 * spec.hidden + spec.vocab + 1 + kScoredInts + step::kMaxLogprobs * kTopInts;
  return row * kRowsAtOnce * int64_t{sizeof(float)};
}

Result<void> HeadLens::allocate() {
  RUDDER_TRY(rows_, ops_->allocate(DType::kF32, {kRowsAtOnce, spec_.hidden}));
  RUDDER_TRY(normed_, ops_->allocate(DType::kF32, {kRowsAtOnce, spec_.hidden}));
  RUDDER_TRY(logits_, ops_->allocate(DType::kF32, {kRowsAtOnce, spec_.vocab}));
  RUDDER_TRY(tokens_, ops_->allocate(DType::kI32, {kRowsAtOnce}));
  RUDDER_TRY(scored_, ops_->allocate(DType::kI32, {kRowsAtOnce, kScoredInts}));
  RUDDER_TRY(top_, ops_->allocate(DType::kI32, {kRowsAtOnce, step::kMaxLogprobs, kTopInts}));
  return {};
}

Result<void> HeadLens::read(std::span<const float> rows, int32_t top, std::vector<LensToken>& out) {
  const auto width = static_cast<size_t>(spec_.hidden);
  const size_t count = rows.size() / width;
  RUDDER_CHECK(rows.size() == count * width && top >= 0 && top <= step::kMaxLogprobs,
               "{} numbers, {} tokens", rows.size(), top);
  const auto per_row = static_cast<size_t>(top);
  out.assign(count * per_row, {});
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const size_t num = std::min<size_t>(kRowsAtOnce, count - begin);
    read_some(rows.subspan(begin * width, num * width), top,
              std::span(out).subspan(begin * per_row, num * per_row));
  }
  return ops_->status();
}

void HeadLens::read_some(std::span<const float> rows, int32_t top, std::span<LensToken> out) {
  const int64_t num = std::ssize(rows) / spec_.hidden;
  std::memcpy(rows_.data, rows.data(), rows.size_bytes());
  ops_->residual_norm({.x = rows_.rows(0, num), .norm = norm_, .out = normed_.rows(0, num)});
  ops_->logits({.x = normed_.rows(0, num),
                .x_scale = {},
                .head = &head_,
                .softcap = spec_.final_softcap,
                .out = logits_.rows(0, num),
                .scale = spec_.logit_scale});
  ops_->score({.logits = logits_.rows(0, num),
               .tokens = tokens_.rows(0, num),
               .num_top = top,
               .scored = scored_.rows(0, num),
               .top = top_.rows(0, num)});
  const auto* scored = static_cast<const ops::SampledToken*>(scored_.data);
  const auto* best = static_cast<const ops::TopLogprob*>(top_.data);
  for (int64_t i = 0; i < num; ++i) {
    if (scored[i].end == ops::SampleEnd::kNumerical) continue;
    for (int32_t k = 0; k < top; ++k) {
      const ops::TopLogprob& one = best[i * step::kMaxLogprobs + k];
      out[static_cast<size_t>(i * top + k)] = {one.token, one.logprob};
    }
  }
}

}  // namespace rudder::exec
