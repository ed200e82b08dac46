#include "rudder/cpu/host_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rudder/base/check.h"
#include "rudder/cpu/encode.h"
#include "rudder/cpu/host_memory.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using tensor::F8E4M3;
using tensor::View;

// An op runs before its call returns, so the event is complete when it is recorded.
struct HostEvent final : ops::Event {
  Result<void> wait() override { return fault; }
  bool done() override { return true; }

  Result<void> fault;  // of the ops before the record
};

void copy_bytes(const View& to, const View& from) {
  RUDDER_CHECK(to.bytes() == from.bytes(), "{} bytes to {}", from.bytes(), to.bytes());
  if (from.bytes() > 0) std::memcpy(to.data, from.data, from.bytes());
}

// The logits of all ranks, in their order.
void put_side_by_side(std::span<const View> parts, const View& out) {
  const int64_t vocab = out.shape[1];
  for (size_t i = 0; i < parts.size(); ++i) {
    const View& part = parts[i];
    const ops::Share share =
        ops::vocab_share(vocab, {static_cast<int32_t>(i), static_cast<int32_t>(parts.size())});
    RUDDER_CHECK(part.shape[1] == share.count, "rank {} has {} logits, not {}", i, part.shape[1],
                 share.count);
    for (int64_t r = 0; r < out.shape[0]; ++r) {
      std::copy_n(part.as<float>() + r * share.count, share.count,
                  out.as<float>() + r * vocab + share.begin);
    }
  }
}

// Of some tokens: whole rows of what the ranks have in `parts`, tapped, and the columns of `rank`
// of them. The row of a token without taps is copied.
void tap_whole_rows(const ops::TapSharesArgs& args, std::span<const View> parts, ops::Share tokens,
                    int32_t rank, ThreadPool* pool) {
  const int64_t width = args.x.shape[1];
  const int64_t whole = args.rows.shape[1];
  RUDDER_CHECK(whole == width * std::ssize(parts), "{} columns of {}", width, whole);
  const ops::TapBatch batch = args.taps.batch->tokens(tokens.begin, tokens.count);
  const ops::Taps taps{args.taps.table, &batch, args.taps.point};
  const auto row_of = [&](int64_t i) { return args.rows.as<float>() + i * whole; };
  const auto run_one = [&](int64_t i) {
    if (!is_tapped(taps, i)) return;
    for (int64_t r = 0; r < std::ssize(parts); ++r) {
      std::copy_n(parts[static_cast<size_t>(r)].as<float>() + (tokens.begin + i) * width, width,
                  row_of(i) + r * width);
    }
    run_taps(taps, i, row_of(i), whole);
  };
  if (pool != nullptr && tokens.count > 1) {
    pool->parallel_for(tokens.count, run_one);
  } else {
    for (int64_t i = 0; i < tokens.count; ++i) run_one(i);
  }
  if (args.encodes) encode_rows({.x = args.rows.rows(0, tokens.count), .taps = taps}, pool);
  for (int64_t i = 0; i < tokens.count; ++i) {
    const int64_t at = (tokens.begin + i) * width;
    const float* const from =
        is_tapped(taps, i) ? row_of(i) + rank * width : args.x.as<float>() + at;
    std::copy_n(from, width, args.out.as<float>() + at);
  }
}

// One row in place, given the mean of the squares of its whole width (of no meaning to a norm that
// clips).
void norm_with_mean(const ops::NormSpec& norm, double mean, int64_t width, float* x) {
  const float* const weight = norm.weight.as<float>();
  if (!norm.alpha.empty()) {
    const float* const alpha = norm.alpha.as<float>();
    for (int64_t i = 0; i < width; ++i) x[i] = std::clamp(alpha[i] * x[i], -1.0f, 1.0f) * weight[i];
    return;
  }
  const auto inverse = static_cast<float>(1.0 / std::sqrt(mean + double{norm.eps}));
  for (int64_t i = 0; i < width; ++i) x[i] = x[i] * inverse * weight[i];
}

}  // namespace

int64_t HostOps::available_memory() const {
  return available_host_memory() / (comm_ == nullptr ? 1 : comm_->rank().count);
}

Result<void> HostOps::status() {
  if (fault_ && comm_ != nullptr) return comm_->status();
  return fault_;
}

void HostOps::note(const Result<void>& outcome) {
  if (outcome || !fault_) return;
  fault_ = outcome;
  if (comm_ != nullptr) comm_->fail(fault_.error());
}

Result<void> HostOps::prepare(const ops::StepBounds& bounds) {
  if (comm_ == nullptr) return {};
  if (sums_.shape.numel() < bounds.max_tokens * bounds.hidden) {
    RUDDER_TRY(sums_, memory_.allocate(DType::kF32, {bounds.max_tokens, bounds.hidden}));
  }
  squares_.resize(std::max(squares_.size(), static_cast<size_t>(bounds.max_tokens) * 2));
  return {};
}

Result<View> HostOps::allocate(DType dtype, tensor::Shape shape) {
  return memory_.allocate(dtype, shape);
}

Result<View> HostOps::upload(const View& host, DType dtype) {
  return memory_.upload(host, dtype);
}

Result<View> HostOps::allocate_staging(int64_t bytes) {
  return memory_.allocate(DType::kU8, {bytes});
}

void HostOps::copy_in(const View& device, const View& staging) {
  copy_bytes(device, staging);
}

void HostOps::copy_out(const View& staging, const View& device) {
  copy_bytes(staging, device);
}

std::unique_ptr<ops::Event> HostOps::make_event() {
  return std::make_unique<HostEvent>();
}

void HostOps::record(ops::Event& event) {
  static_cast<HostEvent&>(event).fault = status();
}

void HostOps::advance_step(const ops::AdvanceStepArgs& args) {
  const int64_t max_blocks = args.state.block_table.shape[1];
  const int64_t group_rows = args.state.ended.shape[0];
  const auto num_slots = static_cast<int32_t>(group_rows - 1);
  const int64_t num_rows = args.ids.num_rows();
  const int64_t num_groups = num_rows > 0 ? args.kv_slot.num_rows() / num_rows : 0;
  auto* sample_rows = static_cast<ops::SampleRow*>(args.sample_rows.data);
  for (int64_t r = 0; r < num_rows; ++r) {
    ops::SampleRow& row = sample_rows[r];
    int32_t* kv_slot = args.kv_slot.as<int32_t>() + r;
    if (row.slot >= num_slots || args.state.ended.as<int32_t>()[row.slot] != 0) {
      for (int64_t g = 0; g < num_groups; ++g) kv_slot[g * num_rows] = -1;
      continue;
    }
    const int32_t position = ++args.positions.as<int32_t>()[r];
    args.ids.as<int32_t>()[r] = std::max(0, args.state.carry.as<int32_t>()[row.slot]);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t at = (g * group_rows + row.slot) * max_blocks + position / args.block_size;
      kv_slot[g * num_rows] =
          args.state.block_table.as<int32_t>()[at] * args.block_size + position % args.block_size;
    }
    ++args.kv_len.as<int32_t>()[r];
    if (!args.since_prompt.empty()) ++args.since_prompt.as<int32_t>()[r];
    ++row.position;
  }
}

void HostOps::quantise(const ops::QuantiseArgs& args) {
  const int64_t width = args.x.shape[1];
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    args.out_scale.as<float>()[t] =
        quantise_row(args.x.as<float>() + t * width, width, args.out.as<F8E4M3>() + t * width);
  }
}

void HostOps::gather_rows(const ops::GatherRowsArgs& args) {
  const auto row_bytes = static_cast<size_t>(args.x.shape[1]) * tensor::dtype_bytes(args.x.dtype);
  const int32_t* rows = args.rows.as<int32_t>();
  for (int64_t r = 0; r < args.out.shape[0]; ++r) {
    std::byte* const to =
        static_cast<std::byte*>(args.out.data) + static_cast<size_t>(r) * row_bytes;
    if (rows[r] < 0) {
      std::memset(to, 0, row_bytes);
      continue;
    }
    std::memcpy(
        to, static_cast<const std::byte*>(args.x.data) + static_cast<size_t>(rows[r]) * row_bytes,
        row_bytes);
  }
}

ops::ResidualNormArgs HostOps::with_ranks_summed(const ops::ResidualNormArgs& args,
                                                 ThreadPool* pool) {
  ops::ResidualNormArgs whole = args;
  whole.sums_ranks = false;
  if (!args.sums_ranks || comm_ == nullptr) return whole;
  RUDDER_CHECK(args.delta.bytes() <= sums_.bytes(), "{} rows to sum", args.delta.shape[0]);
  const auto parts = comm_->exchange("residual_norm", args.delta);
  if (!parts) return whole;  // the events tell it
  whole.delta.data = sums_.data;
  float* const sum = sums_.as<float>();
  const int64_t count = args.delta.shape.numel();
  constexpr int64_t kPiece = int64_t{1} << 14;
  const auto add_piece = [&](int64_t piece) {
    const int64_t begin = piece * kPiece;
    const int64_t end = std::min(count, begin + kPiece);
    std::copy(parts->front().as<float>() + begin, parts->front().as<float>() + end, sum + begin);
    for (const View& part : parts->subspan(1)) {
      const float* const from = part.as<float>();
      for (int64_t i = begin; i < end; ++i) sum[i] += from[i];
    }
  };
  const int64_t num_pieces = (count + kPiece - 1) / kPiece;
  if (pool == nullptr || num_pieces == 1) {
    for (int64_t i = 0; i < num_pieces; ++i) add_piece(i);
  } else {
    pool->parallel_for(num_pieces, add_piece);
  }
  static_cast<void>(comm_->exchange("residual_norm", {}));
  return whole;
}

ops::QkvPrepArgs HostOps::with_spanning_norms_applied(const ops::QkvPrepArgs& args) {
  ops::QkvPrepArgs rest = args;
  rest.norms_span_ranks = false;
  // A norm that clips works on each channel alone: its weights are all that it needs.
  const bool has_sums = !args.q_norm.empty() && args.q_norm.alpha.empty();
  if (!args.norms_span_ranks || comm_ == nullptr) return rest;
  rest.q_norm = {};
  rest.k_norm = {};
  const int64_t rows = args.qkv.shape[0];
  const int64_t stride = args.qkv.shape[1];
  const int64_t begin[2] = {0, args.num_heads * int64_t{args.kv.head_dim}};
  const int64_t width[2] = {begin[1], args.kv.num_kv_heads * int64_t{args.kv.head_dim}};
  const ops::NormSpec* const norms[2] = {&args.q_norm, &args.k_norm};
  const auto row_of = [&](int64_t t, int part) {
    return args.qkv.as<float>() + t * stride + begin[part];
  };
  std::span<const View> shown;
  if (has_sums) {
    for (int64_t t = 0; t < rows; ++t) {
      for (int part = 0; part < 2; ++part) {
        double sum = 0;
        for (int64_t i = 0; i < width[part]; ++i)
          sum += double{row_of(t, part)[i]} * row_of(t, part)[i];
        squares_[static_cast<size_t>(2 * t + part)] = sum;
      }
    }
    const auto exchanged = comm_->exchange(
        "qkv_prep", {squares_.data(), DType::kU8, {rows, 2 * int64_t{sizeof(double)}}});
    if (!exchanged) return rest;
    shown = *exchanged;
  }
  for (int64_t t = 0; t < rows; ++t) {
    for (int part = 0; part < 2; ++part) {
      double sum = 0;
      for (const View& squares : shown)
        sum += static_cast<const double*>(squares.data)[2 * t + part];
      // Where ranks share a KV head, each head is on as many of them: the mean is the same.
      const double mean = sum / static_cast<double>(width[part] * comm_->rank().count);
      norm_with_mean(*norms[part], mean, width[part], row_of(t, part));
    }
  }
  if (has_sums) static_cast<void>(comm_->exchange("qkv_prep", {}));
  return rest;
}

void HostOps::sum_ranks(const View& x) {
  const ops::ResidualNormArgs summed =
      with_ranks_summed({.x = {}, .delta = x, .sums_ranks = true}, nullptr);
  if (summed.delta.data != x.data) copy_bytes(x, {summed.delta.data, x.dtype, x.shape});
}

// Rows are whole; those of other ranks are there when these have come.
void HostOps::end_patterns(const ops::EndPatternsArgs& /*args*/) {
  if (comm_ != nullptr) static_cast<void>(comm_->exchange("end_patterns", {}));
}

void HostOps::run_share_taps(const ops::TapSharesArgs& args, ThreadPool* pool) {
  RUDDER_CHECK(comm_ != nullptr, "{} is no rank of a group", name());
  const auto parts = comm_->exchange("tap_shares", args.x);
  if (!parts) return;  // the events tell it
  const int64_t num_tokens = args.x.shape[0];
  const int64_t at_once = args.rows.shape[0];
  for (int64_t first = 0; first < num_tokens; first += at_once) {
    tap_whole_rows(args, *parts, {first, std::min(at_once, num_tokens - first)},
                   comm_->rank().index, pool);
  }
  static_cast<void>(comm_->exchange("tap_shares", {}));
}

void HostOps::gather_logits(const ops::GatherLogitsArgs& args) {
  if (!args.parts.empty()) return put_side_by_side(args.parts, args.out);
  RUDDER_CHECK(comm_ != nullptr, "{} is no rank of a group", name());
  const auto parts = comm_->exchange("gather_logits", args.part);
  if (!parts) return;
  put_side_by_side(*parts, args.out);
  static_cast<void>(comm_->exchange("gather_logits", {}));
}

float quantise_row(const float* x, int64_t width, F8E4M3* out) {
  float highest = 0;
  for (int64_t i = 0; i < width; ++i) highest = std::max(highest, std::abs(x[i]));
  const float scale = highest / tensor::kMaxF8E4M3;
  for (int64_t i = 0; i < width; ++i) {
    // A row of zeros has scale 0; NaN is no maximum but stays NaN.
    out[i] = tensor::to_f8e4m3(scale > 0 ? x[i] / scale : x[i]);
  }
  return scale;
}

}  // namespace rudder::cpu
