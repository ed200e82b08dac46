#include "rudder/exec/head_lens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/residual_pass.h"
#include "rudder/step/sampling.h"

namespace rudder::exec {
namespace {

using tap::LensToken;
using tensor::DType;
using tensor::Shape;

// The head's weights are read once for so many rows.
constexpr int32_t kRowsAtOnce = 64;
constexpr int64_t kScoredInts = sizeof(ops::SampledToken) / sizeof(int32_t);
constexpr int64_t kTopInts = sizeof(ops::TopLogprob) / sizeof(int32_t);

// Of a row that is collapsed first; 0: no row is.
int64_t whole_width(const model::ModelSpec& spec) {
  return form_of(spec.residual).streams == 1 ? 0 : model::residual_width(spec);
}

}  // namespace

Result<std::unique_ptr<HeadLens>> HeadLens::make(std::unique_ptr<ops::Ops> ops,
                                                 const model::ModelSpec& spec, Weights weights) {
  if (ops == nullptr) {
    return fail(ErrorCode::kInternal, "the backend cannot open its reader of captured rows",
                "lens");
  }
  std::unique_ptr<HeadLens> lens(new HeadLens(std::move(ops), spec, std::move(weights)));
  RUDDER_TRY_VOID(lens->allocate());
  return lens;
}

int64_t HeadLens::device_bytes(const model::ModelSpec& spec, int32_t num_ranks) {
  const int64_t logits = num_ranks > 1 ? 2 * spec.vocab : spec.vocab;
  const int64_t row = whole_width(spec) + 2 * spec.hidden + logits + 2 + kScoredInts +
                      step::kMaxLogprobs * kTopInts;
  return row * kRowsAtOnce * int64_t{sizeof(float)};
}

Result<void> HeadLens::allocate() {
  const bool quantises = weights_.heads.front().input == ops::InputForm::kF8Rows;
  const DType act = ops_->act_dtype();
  RUDDER_CHECK(act == DType::kF32 || act == DType::kBF16, "activations of {}",
               tensor::dtype_name(act));
  RUDDER_TRY(rows_, ops_->allocate(act, {kRowsAtOnce, spec_.hidden}));
  RUDDER_TRY(normed_,
             ops_->allocate(quantises ? DType::kF8E4M3 : act, {kRowsAtOnce, spec_.hidden}));
  const int64_t whole = whole_width(spec_);
  if (whole > 0) {
    RUDDER_TRY(whole_, ops_->allocate(act, {kRowsAtOnce, whole}));
  }
  if (quantises) {
    RUDDER_TRY(scale_, ops_->allocate(DType::kF32, {kRowsAtOnce}));
  }
  RUDDER_TRY(logits_, ops_->allocate(DType::kF32, {kRowsAtOnce, spec_.vocab}));
  for (const ops::LinearWeight& head : weights_.heads) {
    if (weights_.heads.size() == 1) break;
    RUDDER_TRY(parts_.emplace_back(), ops_->allocate(DType::kF32, {kRowsAtOnce, head.out}));
  }
  RUDDER_TRY(tokens_, ops_->allocate(DType::kI32, {kRowsAtOnce}));
  RUDDER_TRY(scored_, ops_->allocate(DType::kI32, {kRowsAtOnce, kScoredInts}));
  RUDDER_TRY(top_, ops_->allocate(DType::kI32, {kRowsAtOnce, step::kMaxLogprobs, kTopInts}));
  const auto staged = [&](const ops::View& view) -> Result<ops::View> {
    RUDDER_TRY(const ops::View bytes, ops_->allocate_staging(static_cast<int64_t>(view.bytes())));
    return ops::View{bytes.data, view.dtype, view.shape};
  };
  RUDDER_TRY(staged_rows_, staged(rows_));
  if (whole > 0) {
    RUDDER_TRY(staged_whole_, staged(whole_));
  }
  RUDDER_TRY(staged_scored_, staged(scored_));
  RUDDER_TRY(staged_top_, staged(top_));
  done_ = ops_->make_event();
  return ops_->status();
}

Result<void> HeadLens::read(std::span<const float> rows, int32_t top, std::vector<LensToken>& out) {
  return read_all(rows, {}, top, out);
}

Result<void> HeadLens::read_collapsed(std::span<const float> rows, std::span<const int32_t> made,
                                      int32_t top, std::vector<LensToken>& out) {
  RUDDER_CHECK(!whole_.empty() && rows.size() == made.size() * static_cast<size_t>(whole_.shape[1]),
               "{} numbers of {} rows", rows.size(), made.size());
  if (!made.empty()) return read_all(rows, made, top, out);
  out.clear();
  return {};
}

// `made` is empty where the rows are of the model's width.
Result<void> HeadLens::read_all(std::span<const float> rows, std::span<const int32_t> made,
                                int32_t top, std::vector<LensToken>& out) {
  const Held held = hold();
  if (weights_.heads.front().packed == nullptr) {
    return fail(ErrorCode::kUnavailable, "the model's weights are not in memory", "lens");
  }
  const auto width = static_cast<size_t>(made.empty() ? spec_.hidden : whole_.shape[1]);
  const size_t count = rows.size() / width;
  RUDDER_CHECK(rows.size() == count * width && top >= 0 && top <= step::kMaxLogprobs,
               "{} numbers, {} tokens", rows.size(), top);
  const auto per_row = static_cast<size_t>(top);
  out.assign(count * per_row, {});
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const size_t num = std::min<size_t>(kRowsAtOnce, count - begin);
    RUDDER_TRY_VOID(read_some(rows.subspan(begin * width, num * width),
                              made.empty() ? made : made.subspan(begin, num), top,
                              std::span(out).subspan(begin * per_row, num * per_row)));
  }
  return ops_->status();
}

// Some passes, between which nobody else has the consumer's thread.
size_t HeadLens::rows_together() const {
  return 4 * size_t{kRowsAtOnce};
}

// The logits of the first `num` normed rows.
void HeadLens::multiply(int64_t num, const ops::View& scale) {
  const ops::View logits = logits_.rows(0, num);
  std::vector<ops::View> parts;
  parts.reserve(parts_.size());
  for (const ops::View& part : parts_) parts.push_back(part.rows(0, num));
  for (size_t i = 0; i < weights_.heads.size(); ++i) {
    ops_->logits({.x = normed_.rows(0, num),
                  .x_scale = scale,
                  .head = &weights_.heads[i],
                  .softcap = spec_.final_softcap,
                  .out = parts.empty() ? logits : parts[i],
                  .scale = spec_.logit_scale});
  }
  if (!parts.empty()) ops_->rank_ops()->gather_logits({.part = {}, .out = logits, .parts = parts});
}

void HeadLens::score(int64_t num, int32_t top) {
  const ops::View scale = scale_.empty() ? ops::View{} : scale_.rows(0, num);
  ops_->residual_norm({.x = rows_.rows(0, num),
                       .norm = weights_.final_norm,
                       .out = normed_.rows(0, num),
                       .out_scale = scale});
  multiply(num, scale);
  ops_->score({.logits = logits_.rows(0, num),
               .tokens = tokens_.rows(0, num),
               .num_top = top,
               .scored = scored_.rows(0, num),
               .top = top_.rows(0, num)});
}

void HeadLens::collapse(std::span<const int32_t> made) {
  size_t end = 0;
  for (size_t begin = 0; begin < made.size(); begin = end) {  // of rows that have as many streams
    while (end < made.size() && made[end] == made[begin]) ++end;
    const auto first = static_cast<int64_t>(begin);
    const auto num = static_cast<int64_t>(end - begin);
    model::collapse(spec_.residual, weights_.residual, *ops_->stream_ops(), whole_.rows(first, num),
                    made[begin], rows_.rows(first, num));
  }
}

Result<void> HeadLens::read_some(std::span<const float> rows, std::span<const int32_t> made,
                                 int32_t top, std::span<LensToken> out) {
  const ops::View& device = made.empty() ? rows_ : whole_;
  const ops::View& staged = made.empty() ? staged_rows_ : staged_whole_;
  const int64_t num = std::ssize(rows) / device.shape[1];
  if (device.dtype == DType::kF32) {
    std::memcpy(staged.data, rows.data(), rows.size_bytes());
  } else {
    std::ranges::transform(rows, staged.as<tensor::BF16>(), tensor::to_bf16);
  }
  ops_->copy_in(device.rows(0, num), staged.rows(0, num));
  collapse(made);
  score(num, top);
  ops_->copy_out(staged_scored_.rows(0, num), scored_.rows(0, num));
  ops_->copy_out(staged_top_.rows(0, num), top_.rows(0, num));
  ops_->record(*done_);
  RUDDER_TRY_VOID(done_->wait());
  const auto* scored = static_cast<const ops::SampledToken*>(staged_scored_.data);
  const auto* best = static_cast<const ops::TopLogprob*>(staged_top_.data);
  for (int64_t i = 0; i < num; ++i) {
    if (scored[i].end == ops::SampleEnd::kNumerical) continue;
    for (int32_t k = 0; k < top; ++k) {
      const ops::TopLogprob& one = best[i * step::kMaxLogprobs + k];
      out[static_cast<size_t>(i * top + k)] = {one.token, one.logprob};
    }
  }
  return {};
}

}  // namespace rudder::exec
