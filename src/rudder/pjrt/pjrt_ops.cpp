#include "rudder/pjrt/pjrt_ops.h"

#include <cstring>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/encode.h"
#include "rudder/cpu/read_features.h"
#include "rudder/cpu/sample.h"
#include "rudder/ops/stored_row.h"

namespace rudder::pjrt {
namespace {

using tensor::DType;
using tensor::View;

[[noreturn]] void never(const char* op) {
  RUDDER_CHECK(false, "{} is no op of a module", op);
  std::abort();
}

// Rows of the part in `dtype`, one behind another.
void write_rows(const ops::LinearPart& part, DType dtype, std::byte* to) {
  const int64_t width = part.in();
  const size_t row_bytes = static_cast<size_t>(width) * dtype_bytes(dtype);
  if (part.format.is_wide() && part.codes.dtype == dtype) {
    std::memcpy(to, part.codes.data, part.codes.bytes());
    return;
  }
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t r = 0; r < part.out(); ++r, to += row_bytes) {
    ops::read_stored_row(part, r, row.data());
    if (dtype == DType::kF32) {
      std::memcpy(to, row.data(), row_bytes);
      continue;
    }
    auto* const numbers = reinterpret_cast<tensor::BF16*>(to);
    for (size_t i = 0; i < row.size(); ++i) numbers[i] = tensor::to_bf16(row[i]);
  }
}

}  // namespace

PjrtOps::PjrtOps(PjrtSettings settings)
    : HostOps(nullptr),
      settings_(std::move(settings)),
      kv_format_(settings_.int8_kv ? ops::kInt8TokenKv : ops::KvFormat{settings_.dtype}),
      pool_(settings_.num_threads) {}

Result<std::unique_ptr<PjrtOps>> PjrtOps::make(const PjrtSettings& settings) {
  RUDDER_CHECK(settings.dtype == DType::kF32 || settings.dtype == DType::kBF16);
  std::unique_ptr<PjrtOps> ops(new PjrtOps(settings));
  RUDDER_TRY(ops->client_, Client::open(settings.plugin));
  return ops;
}

int64_t PjrtOps::available_memory() const {
  const int64_t told = client_->available_memory();
  return told > 0 ? told : HostOps::available_memory();
}

Result<ops::WeightFormat> PjrtOps::stored_format(const ops::WeightFormat& /*file*/) const {
  return ops::WeightFormat{.codes = settings_.dtype == DType::kF32 ? ops::Codes::kF32
                                                                   : ops::Codes::kBF16};
}

Result<ops::LinearWeight> PjrtOps::make_linear(std::span<const ops::LinearPart> parts) {
  ops::LinearWeight linear;
  linear.in = parts.front().in();
  for (const ops::LinearPart& part : parts) linear.out += part.out();
  const bool biased = !parts.front().bias.empty();
  const DType dtype = settings_.dtype;
  const size_t row_bytes = static_cast<size_t>(linear.in) * dtype_bytes(dtype);
  RUDDER_TRY(const cpu::Buffer weight,
             cpu::Buffer::make(static_cast<size_t>(linear.out) * row_bytes));
  std::vector<float> bias;
  size_t first = 0;
  for (const ops::LinearPart& part : parts) {
    RUDDER_CHECK(part.in() == linear.in && part.bias.empty() != biased);
    write_rows(part, dtype, static_cast<std::byte*>(weight.data()) + first * row_bytes);
    first += static_cast<size_t>(part.out());
    if (!biased) continue;
    bias.resize(first);
    RUDDER_TRY_VOID(cpu::convert_values(part.bias.data, part.bias.dtype,
                                        bias.data() + first - static_cast<size_t>(part.out()),
                                        DType::kF32, part.out()));
  }
  auto packed = std::make_shared<DeviceWeight>();
  RUDDER_TRY(packed->weight,
             client_->upload({weight.data(), dtype, {linear.out, linear.in}}, true));
  if (biased) {
    RUDDER_TRY(packed->bias, client_->upload({bias.data(), DType::kF32, {linear.out}}));
  }
  linear.bytes = linear.out * static_cast<int64_t>(row_bytes);
  RUDDER_TRY(linear.format, stored_format({}));
  linear.packed = std::move(packed);
  return linear;
}

void PjrtOps::sample(const ops::SampleArgs& args) {
  cpu::sample_rows(args, &pool_);
}
void PjrtOps::score(const ops::ScoreArgs& args) {
  cpu::score_rows(args, &pool_);
}
void PjrtOps::encode(const ops::EncodeArgs& args) {
  cpu::encode_rows(args, &pool_);
}
void PjrtOps::read_features(const ops::ReadFeaturesArgs& args) {
  cpu::read_features(args, &pool_);
}

void PjrtOps::embed(const ops::EmbedArgs&) {
  never("embed");
}
void PjrtOps::residual_norm(const ops::ResidualNormArgs&) {
  never("residual_norm");
}
void PjrtOps::linear(const ops::LinearArgs&) {
  never("linear");
}
void PjrtOps::qkv_prep(const ops::QkvPrepArgs&) {
  never("qkv_prep");
}
void PjrtOps::attention(const ops::AttentionArgs&) {
  never("attention");
}
void PjrtOps::gated_act(const ops::GatedActArgs&) {
  never("gated_act");
}
void PjrtOps::logits(const ops::LogitsArgs&) {
  never("logits");
}
void PjrtOps::keep_paths(const ops::KeepPathsArgs&) {
  never("keep_paths");
}
void PjrtOps::patterns(const ops::PatternArgs&) {
  never("patterns");
}
void PjrtOps::tap_shares(const ops::TapSharesArgs&) {
  never("tap_shares");
}

}  // namespace rudder::pjrt
