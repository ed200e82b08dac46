#include "rudder/steer/capture/consumer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rudder/base/check.h"

namespace rudder::steer::capture {
namespace {

template <typename T>
T element(std::span<const std::byte> row, size_t i) {
  T value;
  std::memcpy(&value, row.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

std::vector<RowLayout> row_layouts(const CaptureSpec& spec, const Ask& ask,
                                   const tap::Geometry& geometry) {
  const size_t item_bytes = tensor::dtype_bytes(geometry.dtype);
  std::vector<RowLayout> layouts;
  for (const int32_t number : ask.points) {
    const tap::CapturePoint& point = spec.set->points[static_cast<size_t>(number)];
    const auto offset = static_cast<size_t>(spec.offsets[static_cast<size_t>(number)]);
    const int32_t width = geometry.width(point.point);
    RowLayout& layout = layouts.emplace_back();
    layout = {.point = point,
              .offset = offset * item_bytes,
              .bytes = static_cast<size_t>(geometry.row_bytes(point.point)),
              .width = width,
              .dtype = geometry.dtype_at(point.point)};
    const bool is_residual = tap::is_residual(point.point.site);
    if (is_residual || tap::is_mix(point.point.site)) layout.residual = geometry.residual;
    if (is_residual && ask.stream) layout = stream_of(layout, *ask.stream);
  }
  return layouts;
}

RowLayout stream_of(RowLayout whole, int32_t stream) {
  if (!whole.has_streams()) return whole;
  whole.width /= whole.residual->streams;
  whole.bytes /= static_cast<size_t>(whole.residual->streams);
  whole.offset += static_cast<size_t>(stream) * whole.bytes;
  whole.stream = stream;
  return whole;
}

namespace {

// What the axes of a row are, as JSON.
std::string_view axes_of(const RowLayout& layout) {
  const tap::Site site = layout.point.point.site;
  if (tap::is_residual(site)) return layout.stream ? R"(["hidden"])" : R"(["stream","hidden"])";
  const bool is_post = (tap::site_bit(site) & tap::kPostMixSites) != 0;
  return is_post ? R"(["stream"])" : R"(["from_stream","stream"])";
}

}  // namespace

std::string residual_json(const RowLayout& layout) {
  if (!layout.residual || layout.residual->streams == 1) return "";
  const tap::ResidualForm& form = *layout.residual;
  std::string names;
  for (int32_t i = 0; i < form.streams; ++i) {
    if (layout.stream && i != *layout.stream) continue;
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ",", form.stream_name(i));
  }
  return fmt::format(
      R"("residual":{{"kind":"{}","streams":{},"stream":{},"names":[{}],"layout":{}}})",
      tap::residual_kind_name(form.kind), form.streams,
      layout.stream ? fmt::to_string(*layout.stream) : "\"all\"", names, axes_of(layout));
}

std::vector<PatternLayout> pattern_layouts(const CaptureSpec& spec, const Ask& ask,
                                           const tap::Geometry& geometry) {
  const size_t item_bytes = tensor::dtype_bytes(geometry.dtype);
  const std::vector<tap::CapturePattern>& all = spec.set->patterns;
  std::vector<PatternLayout> layouts;
  for (const tap::CapturePattern& wanted : ask.patterns) {
    const auto at = std::ranges::lower_bound(all, wanted.layer, {}, &tap::CapturePattern::layer);
    RUDDER_CHECK(at != all.end() && at->layer == wanted.layer, "layer {}", wanted.layer);
    const size_t part = spec.set->points.size() + static_cast<size_t>(at - all.begin());
    layouts.push_back({*at, static_cast<size_t>(spec.offsets[part]) * item_bytes});
  }
  return layouts;
}

std::span<const std::byte> RowBatch::pattern(const Record& record, const PatternLayout& layout,
                                             int32_t head, size_t item_bytes) const {
  const auto& [layer, keys, heads] = layout.pattern;
  const auto found = std::ranges::lower_bound(heads, head);
  RUDDER_CHECK(found != heads.end() && *found == head, "head {} of layer {}", head, layer);
  const auto first = static_cast<size_t>(found - heads.begin()) * static_cast<size_t>(keys);
  const auto count = static_cast<size_t>(std::min(record.position + 1, keys));
  return {chunk->data.get() + record.begin + layout.offset + first * item_bytes,
          count * item_bytes};
}

std::string_view dtype_spelling(tensor::DType dtype) {
  if (dtype == tensor::DType::kBF16) return "bfloat16";
  if (dtype == tensor::DType::kI16) return "int16";
  return dtype == tensor::DType::kF16 ? "float16" : "float32";
}

void decode_row(std::span<const std::byte> row, tensor::DType dtype, std::span<float> out) {
  RUDDER_CHECK(row.size() == out.size() * tensor::dtype_bytes(dtype));
  switch (dtype) {
    case tensor::DType::kF32:
      std::memcpy(out.data(), row.data(), row.size());
      return;
    case tensor::DType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = tensor::to_float(element<tensor::BF16>(row, i));
      }
      return;
    case tensor::DType::kF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = tensor::to_float(element<tensor::F16>(row, i));
      }
      return;
    case tensor::DType::kI16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = element<int16_t>(row, i);
      return;
    default:
      RUDDER_CHECK(false, "rows of dtype {}", tensor::dtype_name(dtype));
  }
}

void decode_row(const tap::CapturedRows& rows, int64_t begin, tensor::DType dtype,
                std::span<float> out) {
  const auto* const row = static_cast<const std::byte*>(rows.data) +
                          static_cast<size_t>(begin) * tensor::dtype_bytes(rows.dtype);
  decode_row({row, out.size() * tensor::dtype_bytes(dtype)}, dtype, out);
}

}  // namespace rudder::steer::capture
