// Whole encodes: runs of kEncode on the rows of some tokens, against their formulas in double
// precision (tap/dictionary_head.h).
#include "rudder/testing/ops_conformance_encode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rudder::testing {
namespace {

using tap::DictionaryHead;
using tap::FeatureNorm;
using tap::OpKind;
using tap::TapOp;
using tensor::DType;
using tensor::View;

constexpr float kAlwaysOpen = -1e30f;
// Values nearer than this to a threshold, relative to 1, may lie on either side of it.
constexpr double kNear = 2e-5;

// norm(h) = (h - mean) by, and back.
struct Scale {
  double mean = 0;
  double by = 1;
  double back = 1;
};

struct Features {
  std::vector<double> values;
  Scale scale;
  bool is_sure = true;  // no rounding decides what is active
};

Scale scale_of(FeatureNorm norm, const std::vector<double>& h) {
  const auto count = static_cast<double>(h.size());
  Scale scale;
  if (norm == FeatureNorm::kNone) return scale;
  if (norm == FeatureNorm::kLayerNorm) scale.mean = std::reduce(h.begin(), h.end()) / count;
  double squares = 0;
  for (const double value : h) squares += (value - scale.mean) * (value - scale.mean);
  if (norm == FeatureNorm::kConstantNorm) {
    scale.back = std::sqrt(squares / count);
    scale.by = scale.back > 0 ? 1 / scale.back : 0;
  } else {
    scale.back = count > 1 ? std::sqrt(squares / (count - 1)) : 0;
    scale.by = 1 / (scale.back + tap::kLayerNormEpsilon);
  }
  return scale;
}

Features encoded(const DictionaryFloats& image, const std::vector<double>& h) {
  const DictionaryHead& head = image.head;
  Features out;
  out.scale = scale_of(head.norm, h);
  for (int64_t j = 0; j < head.num_features; ++j) {
    double y = 0;
    const float* const row = image.floats.data() + head.encoder + j * head.d_in;
    for (size_t i = 0; i < h.size(); ++i) y += (h[i] - out.scale.mean) * out.scale.by * row[i];
    const double gate = image.at(head.gate, j);
    if (std::abs(y - gate) < kNear * (1 + std::abs(gate))) out.is_sure = false;
    const double value = image.at(head.scale, j) * y + image.at(head.bias, j);
    out.values.push_back(y > gate ? std::max(value, 0.0) : 0.0);
  }
  if (head.k == 0 || head.k >= head.num_features) return out;
  std::vector<double> sorted = out.values;
  std::ranges::sort(sorted, std::greater());
  const double least = sorted[static_cast<size_t>(head.k) - 1];
  const double next = sorted[static_cast<size_t>(head.k)];
  if (least > 0 && least - next < kNear * (1 + least)) out.is_sure = false;
  for (double& value : out.values) value = value >= least ? value : 0;
  return out;
}

double edited(const TapOp& op, double f) {
  switch (op.edit) {
    case tap::FeatureEdit::kSet:
      return op.value;
    case tap::FeatureEdit::kAdd:
      return f + op.value;
    case tap::FeatureEdit::kMultiply:
      return f * op.value;
    case tap::FeatureEdit::kMin:
      return std::max<double>(f, op.value);
    case tap::FeatureEdit::kMax:
      return std::min<double>(f, op.value);
  }
  return f;
}

// Of the decoder row of an op without a gate.
double factor_of(const TapOp& op, const Features& features, int32_t n) {
  const double f = features.values[static_cast<size_t>(op.feature)];
  const bool is_on = op.schedule == tap::ScheduleKind::kConstant || (n >= op.begin && n < op.end);
  if (!is_on || (op.hi > 0 && f <= 0)) return 0;
  return op.strength * features.scale.back * (edited(op, f) - f);
}

std::vector<double> decoded(const DictionaryFloats& image, const Features& features,
                            const std::vector<double>& h) {
  const DictionaryHead& head = image.head;
  std::vector<double> out(static_cast<size_t>(head.d_out));
  for (int64_t j = 0; j < head.num_features; ++j) {
    const double f = features.values[static_cast<size_t>(j)];
    for (size_t i = 0; f != 0 && i < out.size(); ++i) {
      out[i] += f * image.at(head.decoder, j * head.d_out + static_cast<int64_t>(i));
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    out[i] = (out[i] + image.at(head.output_bias, at)) * features.scale.back + features.scale.mean;
    for (int64_t c = 0; head.skip != 0 && c < head.d_in; ++c) {
      out[i] += image.at(head.skip, at * head.d_in + c) * h[static_cast<size_t>(c)];
    }
  }
  return out;
}

// Two numbers of a row to a float, up to where a vector may begin.
void append_bf16(std::span<const float> values, std::vector<float>& floats) {
  for (size_t i = 0; i < values.size(); i += 2) {
    const uint32_t low = tensor::to_bf16(values[i]).bits;
    const uint32_t high = i + 1 < values.size() ? tensor::to_bf16(values[i + 1]).bits : 0;
    floats.push_back(std::bit_cast<float>(low | high << 16));
  }
  floats.resize((floats.size() + 15) / 16 * 16);
}

}  // namespace

std::vector<float> OpsEncode::laid_out(const DictionaryFloats& image) {
  DictionaryHead head = image.head;
  std::vector<float> floats = image.floats;
  const std::span<const float> all = image.floats;
  const auto rows = [&](int32_t begin, int32_t width) {
    return all.subspan(static_cast<size_t>(begin),
                       static_cast<size_t>(head.num_features) * static_cast<size_t>(width));
  };
  for (int64_t j = 0; j < head.num_features; ++j) {
    const auto row =
        rows(head.encoder, head.d_in)
            .subspan(static_cast<size_t>(j * head.d_in), static_cast<size_t>(head.d_in));
    floats[static_cast<size_t>(head.encoder_sum + j)] =
        static_cast<float>(std::accumulate(row.begin(), row.end(), 0.0));
  }
  if (image.is_bf16) {
    const std::span<const float> encoder = rows(head.encoder, head.d_in);
    const std::span<const float> decoder = rows(head.decoder, head.d_out);
    floats.resize(static_cast<size_t>(head.encoder));
    append_bf16(encoder, floats);
    head.decoder = static_cast<int32_t>(floats.size());
    append_bf16(decoder, floats);
    head.is_bf16 = 1;
  }
  const auto words =
      std::bit_cast<std::array<float, static_cast<size_t>(tap::kDictionaryHeadFloats)>>(head);
  std::ranges::copy(words, floats.begin());
  return floats;
}

std::vector<double> OpsEncode::features_of(const DictionaryFloats& image, const Row& h,
                                           bool& is_sure) {
  Features features = encoded(image, h);
  is_sure = features.is_sure;
  return std::move(features.values);
}

std::vector<float> OpsEncode::even_values(int64_t count, double scale) {
  std::vector<float> out(static_cast<size_t>(count));
  uint64_t state = random_();
  const double unit = scale * std::sqrt(3.0) / static_cast<double>(1 << 23);
  for (float& value : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<double>(static_cast<int64_t>(state >> 40) - (1 << 23)) *
                               unit);
  }
  return out;
}

DictionaryFloats OpsEncode::random_image(int32_t d_in, int32_t d_out, int32_t num_features,
                                         int32_t k, bool has_skip) {
  DictionaryFloats image;
  DictionaryHead& head = image.head;
  head = {.d_in = d_in, .d_out = d_out, .num_features = num_features, .k = k};
  head.norm = static_cast<FeatureNorm>(between(0, 2));
  image.floats.resize(tap::kDictionaryHeadFloats);
  const auto put = [&](std::vector<float> values) {
    const auto begin = static_cast<int32_t>(image.floats.size());
    image.floats.insert(image.floats.end(), values.begin(), values.end());
    image.floats.resize((image.floats.size() + 15) / 16 * 16);
    return begin;
  };
  std::vector<float> scales = even_values(num_features, 0.2);
  for (float& value : scales) value += 1;
  head.scale = put(std::move(scales));
  head.bias = put(even_values(num_features, 0.3));
  std::vector<float> gates = even_values(num_features, 0.1);
  for (float& value : gates) value = k > 0 ? kAlwaysOpen : value + 1;
  head.gate = put(std::move(gates));
  head.output_bias = put(even_values(d_out, 0.1));
  if (has_skip) head.skip = put(even_values(int64_t{d_out} * d_in, 0.3 / std::sqrt(d_in)));
  head.encoder_sum = put(std::vector<float>(static_cast<size_t>(num_features)));
  head.encoder = put(even_values(int64_t{num_features} * d_in, 1 / std::sqrt(d_in)));
  head.decoder = put(even_values(int64_t{num_features} * d_out, 1 / std::sqrt(d_out)));
  return image;
}

void OpsEncode::round_rows(DictionaryFloats& image) {
  image.is_bf16 = true;
  // Encoder and decoder are the last.
  for (float& value : std::span(image.floats).subspan(static_cast<size_t>(image.head.encoder))) {
    value = tensor::to_float(tensor::to_bf16(value));
  }
}

TapOp OpsEncode::edit_of(const DictionaryFloats& image) {
  TapOp op;
  op.kind = OpKind::kEncoded;
  op.feature = static_cast<int32_t>(between(0, image.head.num_features - 1));
  op.edit = static_cast<tap::FeatureEdit>(between(0, 4));
  op.value = static_cast<float>(between(-8, 8)) / 4;
  op.hi = static_cast<float>(between(0, 1));
  op.strength = static_cast<float>(between(1, 4)) / 2;
  if (between(0, 2) == 0) {
    op.schedule = tap::ScheduleKind::kWindow;
    op.begin = -1;
    op.end = 2;
  }
  return op;
}

void OpsEncode::add_encode(tap::Program& program, int32_t number, const DictionaryFloats& image,
                           bool is_full) {
  TapOp op;
  op.kind = OpKind::kEncode;
  op.v1 = number;  // until place()
  op.lo = is_full ? 1.0f : 0.0f;
  const int64_t edits = between(is_full ? 0 : 1, 5);
  op.run = static_cast<int32_t>(edits + 1);
  program.ops.push_back({kPost, op});
  for (int64_t i = 0; i < edits; ++i) program.ops.push_back({kPost, edit_of(image)});
}
void OpsEncode::add_add(tap::Program& program, int64_t width) {
  TapOp op;
  op.v1 = add_vector(Row(static_cast<size_t>(width), 0.25), program.vectors);
  op.strength = 2;
  program.ops.push_back({kPost, op});
}

void OpsEncode::put_with(Scene& scene, std::vector<DictionaryFloats>& images,
                         int64_t ring_elements) {
  std::vector<int32_t> offsets;
  std::vector<float> floats;
  int32_t most = 0;
  for (const DictionaryFloats& image : images) {
    const std::vector<float> own = laid_out(image);
    offsets.push_back(static_cast<int32_t>(floats.size()));
    floats.insert(floats.end(), own.begin(), own.end());
    most = std::max(most, image.head.num_features);
  }
  int64_t base = 0;
  for (tap::Program& program : scene.programs) {
    const bool is_first = &program == scene.programs.data();
    const auto by = static_cast<int32_t>(is_first ? floats.size() : 0);
    if (is_first) program.vectors.insert(program.vectors.begin(), floats.begin(), floats.end());
    for (tap::ProgramOp& op : program.ops) {
      if (op.op.kind == OpKind::kEncode) {
        op.op.v1 = static_cast<int32_t>(offsets[static_cast<size_t>(op.op.v1)] - base);
      } else if (op.op.v1 != tap::kNoVector) {
        op.op.v1 += by;
      }
    }
    base += (std::ssize(program.vectors) + 15) / 16 * 16;
  }
  put_scene(scene, ring_elements);
  const int64_t width = scene.geometry.hidden;
  scene.table.features = poisoned(DType::kF32, {tap::kEncodedRows, tap::feature_row_floats(most)});
  scene.table.encoded_rows = poisoned(DType::kF32, {tap::kEncodedRows, width});
  scene.table.carried = poisoned(DType::kF32, {kMaxTapTokens, width});
}

bool OpsEncode::round_to_act(Row& h) const {
  if (act_ != DType::kBF16) return true;
  bool is_sure = true;
  for (double& value : h) {
    const auto rounded = [](double exact) {
      return double{tensor::to_float(tensor::to_bf16(static_cast<float>(exact)))};
    };
    is_sure = is_sure && rounded(value * (1 - 5e-6)) == rounded(value * (1 + 5e-6));
    value = rounded(value);
  }
  return is_sure;
}

OpsEncode::Row OpsEncode::expected_row(const std::vector<DictionaryFloats>& images,
                                       const tap::Program& program,
                                       const std::vector<int32_t>& numbers, Row h, int32_t n,
                                       bool& is_sure) const {
  size_t next = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const TapOp& op = program.ops[i].op;
    if (op.kind == OpKind::kAdd && next > 0) {
      for (double& value : h) value += 0.5;
    }
    if (op.kind != OpKind::kEncode) continue;
    const DictionaryFloats& image = images[static_cast<size_t>(numbers[next++])];
    const Features features = encoded(image, h);
    is_sure = is_sure && features.is_sure;
    Row row = op.lo > 0 ? decoded(image, features, h) : h;
    for (size_t e = i + 1; e < i + static_cast<size_t>(op.run); ++e) {
      const TapOp& edit = program.ops[e].op;
      const double factor = factor_of(edit, features, n);
      for (size_t c = 0; c < row.size(); ++c) {
        row[c] += factor * image.at(image.head.decoder, int64_t{edit.feature} * image.head.d_out +
                                                            static_cast<int64_t>(c));
      }
    }
    h = std::move(row);
    if (i + static_cast<size_t>(op.run) < program.ops.size()) is_sure &= round_to_act(h);
  }
  return h;
}

void OpsEncode::check_rows(int32_t width, std::vector<DictionaryFloats> images, int64_t rows,
                           int& checked) {
  Scene scene;
  scene.geometry = geometry_of(width);
  const std::vector<std::vector<int32_t>> numbers = {{0}, {0}, {1, 0}, {1}};
  for (size_t i = 0; i < numbers.size(); ++i) {
    tap::Program program;
    if (i == 1) add_add(program, width);
    for (const int32_t number : numbers[i]) {
      add_encode(program, number, images[static_cast<size_t>(number)], i % 2 == 0);
    }
    if (i >= 2) add_add(program, width);
    scene.programs.push_back(std::move(program));
  }
  scene.sets = {{{{kPost, false}, {kPost, true}}}};
  const int64_t record = record_elements(scene.sets[0], scene.geometry);
  for (int64_t t = 0; t < rows; ++t) {
    TapToken token;
    token.row = static_cast<int32_t>(between(0, rows > 200 && between(0, 9) > 0 ? 0 : 4));
    token.since_prompt = static_cast<int32_t>(between(-3, 3));
    token.capture_set = static_cast<int32_t>(between(-1, 0));
    token.capture_begin = static_cast<int32_t>(t * record / tap::kCaptureAlign);
    scene.tokens.push_back(token);
  }
  put_with(scene, images, rows * record);
  const View x = random({rows, width});
  ops::ResidualNormArgs args;
  args.x = copy(x);
  args.x_taps[0] = scene.at(kPost);
  const Matrix before = read(x);
  ops_.residual_norm(args);
  const Matrix front = read(args.x);
  ops_.feature_ops()->encode({.x = args.x, .taps = scene.at(kPost)});
  const Matrix got = read(args.x);
  const Matrix ring = read(scene.table.ring);
  for (int64_t t = 0; t < rows; ++t) {
    const TapToken& token = scene.tokens[static_cast<size_t>(t)];
    const std::string what =
        "row " + std::to_string(t) + " of " + std::to_string(rows) + ", width " +
        std::to_string(width) + ", features " + std::to_string(images[0].head.num_features) +
        ", k " + std::to_string(images[0].head.k) + ", program " + std::to_string(token.row);
    const int64_t at = token.capture_begin * tap::kCaptureAlign;
    if (token.capture_set == 0) {
      EXPECT_EQ(ring.slice(0, 1, at, width).values, row_of(before, t)) << what;
      EXPECT_EQ(ring.slice(0, 1, at + record / 2, width).values, row_of(got, t)) << what;
    }
    Row expected = row_of(before, t);
    if (token.row == 2) {
      for (double& value : expected) value += 0.5;
    }
    expect_row(row_of(front, t), expected, 1e-6 * (1 + most(expected)), what + ", in front");
    if (token.row > 0) {
      bool is_sure = true;
      const auto program = static_cast<size_t>(token.row - 1);
      expected = expected_row(images, scene.programs[program], numbers[program], row_of(front, t),
                              token.since_prompt, is_sure);
      if (!is_sure) continue;
      ++checked;
    }
    // A row is rounded to act between two encodes too.
    const double tolerance = (3e-5 + 12 * act_unit()) * (1 + most(expected));
    expect_row(row_of(got, t), expected, tolerance, what);
    if (HasFailure()) return;
  }
}

namespace {

TEST_P(OpsEncode, RowsAreWhatEncodingEditingAndDecodingMakeOfThem) {
  constexpr int32_t kWidths[] = {8, 64, 17, 136, 1, 256, 100, 320, 264, 33, 520};
  constexpr int32_t kCounts[] = {31, 64, 1, 500, 7, 1000, 200, 130};
  // Batches of 1 to 64 rows, and full ones with few behind; columns behind a full slab are few too.
  constexpr int64_t kRows[] = {1, 40, 16, 170, 7, 115};
  int checked = 0;
  for (int round = 0; round < 33; ++round) {
    const int32_t width = kWidths[round % 11];
    const auto count = [&] { return kCounts[between(0, 7)]; };
    std::vector<DictionaryFloats> images;
    for (int i = 0; i < 2; ++i) {
      const int32_t num_features = count();
      const auto k = static_cast<int32_t>(
          between(0, 2) == 0 ? 0 : between(1, std::min<int64_t>(num_features + 1, 128)));
      images.push_back(random_image(width, width, num_features, k, between(0, 3) == 0));
      if (between(0, 1) == 0) round_rows(images.back());
    }
    check_rows(width, std::move(images), round == 5 ? 700 : kRows[round % 6], checked);
    if (HasFailure()) return;
  }
  EXPECT_GT(checked, 600);
}

// Of the sizes that are published.
TEST_P(OpsEncode, LargeDictionaries) {
  if (!GetParam().takes_large_shapes) GTEST_SKIP() << "minutes on this backend";
  int checked = 0;
  for (const auto& [width, num_features, k] :
       {std::array{2304, 16384, 0}, std::array{2304, 16384, 64}, std::array{1024, 65536, 128}}) {
    for (const bool is_bf16 : {false, true}) {
      std::vector<DictionaryFloats> images;
      images.push_back(random_image(width, width, num_features, k));
      if (is_bf16) round_rows(images.back());
      images.push_back(random_image(width, width, 64, 8));
      check_rows(width, std::move(images), 20, checked);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(checked, 20);
}

// What is written elsewhere goes there by relays and carried rows.
TEST_P(OpsEncode, WhatIsWrittenElsewhereIsCarried) {
  for (const int32_t width : {64, 17}) {
    std::vector<DictionaryFloats> images = {random_image(width, width, 90, 11, true)};
    images[0].head.writes_elsewhere = 1;
    Scene scene;
    scene.geometry = geometry_of(width);
    tap::Program program;
    TapOp op;
    op.kind = OpKind::kEncode;
    op.v1 = 0;
    op.lo = 1;
    op.run = 2;
    program.ops.push_back({kPost, op});
    TapOp edit = edit_of(images[0]);
    edit.edit = tap::FeatureEdit::kAdd;
    edit.hi = 0;
    edit.value = 1.5f;
    edit.schedule = tap::ScheduleKind::kConstant;
    edit.relay = 5;
    program.ops.push_back({kPost, edit});
    TapOp carried;
    carried.kind = OpKind::kCarried;
    program.ops.push_back({kNeurons, carried});
    TapOp write;
    write.kind = OpKind::kFeature;
    write.run = 1;
    write.relay = 5;
    write.v1 = add_vector(Row(static_cast<size_t>(width), 0.5), program.vectors);
    program.ops.push_back({kNeurons, write});
    scene.programs = {std::move(program)};
    constexpr int64_t kRows = 21;
    for (int32_t t = 0; t < kRows; ++t) scene.tokens.push_back({.row = t % 2});
    put_with(scene, images, 0);
    const View x = random({kRows, width});
    const Matrix before = read(x);
    ops_.feature_ops()->encode({.x = x, .taps = scene.at(kPost)});
    EXPECT_EQ(read(x).values, before.values);
    const View gate_up = random({kRows, 2 * width}, 2);
    const View out = poisoned({kRows, width});
    ops_.gated_act({gate_up, ops::Activation::kSilu, out, {}, scene.at(kNeurons)});
    const Matrix acted = reference_gated_act(read(gate_up), ops::Activation::kSilu);
    const Matrix got = read(out);
    for (int64_t t = 0; t < kRows; ++t) {
      Row expected = row_of(acted, t);
      if (t % 2 == 1) {
        const Features features = encoded(images[0], row_of(before, t));
        if (!features.is_sure) continue;
        expected = decoded(images[0], features, row_of(before, t));
        const double factor = factor_of(edit, features, 0);
        for (double& value : expected) value += factor * 0.5;
      }
      expect_row(row_of(got, t), expected, 3e-5 * (1 + most(expected)),
                 "row " + std::to_string(t) + " of width " + std::to_string(width));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace rudder::testing
