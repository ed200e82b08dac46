// qkv_prep and attention together: only a backend knows how its KV cache is laid out.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "rudder/testing/ops_conformance_attention.h"

namespace rudder::testing {

using tensor::DType;
using tensor::View;

AttentionShape OpsAttention::fuzzed_shape() {
  constexpr int64_t kKvHeads[] = {1, 2, 3};
  constexpr int64_t kGroups[] = {1, 2, 3, 4, 7, 8, 16};
  AttentionShape shape;
  shape.head_dim = pick(GetParam().head_dims);
  shape.kv_heads = pick(kKvHeads);
  shape.heads = shape.kv_heads * pick(kGroups);
  shape.block_size = pick(GetParam().block_sizes);
  constexpr int64_t kRotary[] = {0, 1, 2};  // none, half of a head, all of it
  shape.rotary = shape.head_dim / 4 * 2 * pick(kRotary);
  constexpr int64_t kNorms[] = {0, 1, 2};
  const int64_t norm = pick(kNorms);
  if (norm == 1) shape.q_norm_width = shape.k_norm_width = shape.head_dim;
  if (norm == 2) {
    shape.q_norm_width = shape.heads * shape.head_dim;
    shape.k_norm_width = shape.kv_heads * shape.head_dim;
  }
  constexpr int64_t kWindows[] = {0, 0, 1, 5, 16, 40, 64};
  shape.window = pick(kWindows);
  constexpr int64_t kCaps[] = {0, 0, 5, 50};
  shape.softcap = static_cast<float>(pick(kCaps));
  shape.has_v_norm = between(0, 3) == 0;
  shape.norms_rotated = norm == 1 && between(0, 2) == 0;
  shape.has_q_scale = between(0, 3) == 0;
  shape.has_sinks = between(0, 3) == 0;
  if (between(0, 3) == 0) {
    shape.gate_length = static_cast<int32_t>(between(1, ops::kMaxFirLength));
    shape.has_sinks = false;
    shape.softcap = 0;
  }
  return shape;
}

OpsAttention::Layer OpsAttention::make_layer(const AttentionShape& shape, int64_t num_tokens) {
  // Each sequence's last block may be a part, and one is never written.
  const int64_t num_blocks = num_tokens / shape.block_size + kMostSequences + 1;
  Layer layer;
  layer.shape = shape;
  // What has not been written is NaN.
  const ops::KvFormat format = ops_.kv_format();
  layer.kv.storage =
      poisoned(format.dtype, {num_blocks, 2, shape.kv_heads, shape.block_size * shape.head_dim});
  if (format.scales_tokens) {  // other layers' are beside them
    const int64_t width = 2 * shape.kv_heads * shape.block_size + 16 * between(0, 2);
    layer.kv.token_scales = poisoned(DType::kF32, {num_blocks, width});
  }
  layer.kv.block_size = static_cast<int32_t>(shape.block_size);
  layer.kv.num_kv_heads = static_cast<int32_t>(shape.kv_heads);
  layer.kv.head_dim = static_cast<int32_t>(shape.head_dim);
  if (format == ops::KvFormat{DType::kF8E4M3} && between(0, 2) > 0) {
    layer.k_scales = random_scales(shape.kv_heads);
    layer.v_scales = random_scales(shape.kv_heads);
    layer.kv.k_scale = device_.put(HostTensor(layer.k_scales, DType::kF32, {shape.kv_heads}));
    layer.kv.v_scale = device_.put(HostTensor(layer.v_scales, DType::kF32, {shape.kv_heads}));
  }
  if (shape.q_norm_width > 0) layer.q_norm = random_norm(shape.q_norm_width);
  if (shape.k_norm_width > 0) layer.k_norm = random_norm(shape.k_norm_width);
  if (shape.has_v_norm) layer.v_norm = random_norm(shape.head_dim);
  if (shape.has_sinks) {
    layer.sinks = random_values(shape.heads, 4);
    layer.device_sinks = device_.put(HostTensor(layer.sinks, DType::kF32, {shape.heads}));
  }
  if (shape.gate_length > 0) make_gate(layer);
  if (shape.rotary > 0) {
    std::vector<float> rope = random_values(kMaxPositions * shape.rotary);
    for (float& value : rope) value = std::clamp(value, -1.0f, 1.0f);
    // Of a proportional rope the last pairs stand still.
    const int64_t half = shape.rotary / 2;
    const int64_t turning = between(0, 1) == 0 ? half : between(0, half);
    for (int64_t row = 0; row < kMaxPositions; ++row) {
      for (int64_t i = turning; i < half; ++i) {
        rope[static_cast<size_t>(row * shape.rotary + i)] = 1;
        rope[static_cast<size_t>(row * shape.rotary + half + i)] = 0;
      }
    }
    layer.host_rope = HostTensor(rope, DType::kF32, {kMaxPositions, 2, shape.rotary / 2});
    layer.rope = device_.put(layer.host_rope);
  }
  if (shape.has_q_scale) {
    layer.host_q_scale = random_values(kMaxPositions, 0.2);
    for (float& value : layer.host_q_scale) value += 1;
    layer.q_scale = device_.put(HostTensor(layer.host_q_scale, DType::kF32, {kMaxPositions}));
  }
  layer.free_blocks.resize(static_cast<size_t>(num_blocks));
  std::iota(layer.free_blocks.begin(), layer.free_blocks.end(), 0);
  std::shuffle(layer.free_blocks.begin(), layer.free_blocks.end(), random_);
  return layer;
}

void OpsAttention::make_gate(Layer& layer) {
  const int64_t heads = layer.shape.heads;
  const auto draw = [&](std::vector<double>& reference) {
    std::vector<float> values = random_values(heads, 0.3);
    for (float& value : values) value += 1;
    reference.assign(values.begin(), values.end());
    return device_.put(HostTensor(values, DType::kF32, {heads}));
  };
  ReferenceGate& reference = layer.reference_gate;
  layer.gate.sigma = draw(reference.sigma);
  layer.gate.gamma = draw(reference.gamma);
  reference.length = layer.gate.length = layer.shape.gate_length;
  reference.relu_pre = layer.gate.relu_pre = between(0, 1) == 0;
  if (between(0, 1) == 0) {
    reference.low = layer.gate.low = -0.5f;
    reference.high = layer.gate.high = 2.0f;
  }
}

std::vector<float> OpsAttention::random_scales(int64_t heads) {
  std::vector<float> scales;
  for (int64_t h = 0; h < heads; ++h) {
    const auto mantissa = static_cast<float>(between(64, 127)) / 64;
    scales.push_back(std::ldexp(mantissa, static_cast<int>(between(-6, 1))));
  }
  return scales;
}

OpsAttention::Sequence OpsAttention::make_sequence(Layer& layer, int64_t length) {
  Sequence sequence;
  const AttentionShape& shape = layer.shape;
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  sequence.qkv = HostTensor(random_values(length * width), act_, {length, width});
  for (int64_t i = 0; i < length; i += shape.block_size) {
    sequence.blocks.push_back(layer.free_blocks.back());
    layer.free_blocks.pop_back();
  }
  return sequence;
}

View OpsAttention::run_step(Layer& layer, std::span<Sequence> sequences,
                            std::span<const int64_t> q_lens, int64_t padding,
                            std::span<const std::vector<int32_t>> trees) {
  const AttentionShape& shape = layer.shape;
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t q_width = shape.heads * shape.head_dim;
  const int64_t total = std::accumulate(q_lens.begin(), q_lens.end(), padding);
  const auto row_bytes = static_cast<size_t>(width) * tensor::dtype_bytes(act_);
  HostTensor qkv(act_, {total, width});
  std::vector<int32_t> rope_row;
  std::vector<int32_t> slots;
  std::vector<int32_t> q_begin = {0};
  std::vector<int32_t> kv_len;
  std::vector<int32_t> table_row;
  std::vector<uint64_t> ancestors;
  // Sequences have rows of the table in any order. The table names a block that nobody has written
  // behind a sequence's last block, for blocks that its window has passed, and in other KV groups.
  const int32_t unwritten = layer.free_blocks.front();
  const size_t table_rows = sequences.size() + 3;
  auto max_blocks = static_cast<size_t>(kMaxPositions / shape.block_size) + 1;
  for (const Sequence& sequence : sequences) {
    max_blocks = std::max(max_blocks, sequence.blocks.size());
  }
  layer.kv.group = static_cast<int32_t>(between(0, 2));
  const size_t group_begin = static_cast<size_t>(layer.kv.group) * table_rows * max_blocks;
  std::vector<int32_t> table(3 * table_rows * max_blocks, unwritten);
  std::vector<int32_t> row_order(table_rows);
  std::iota(row_order.begin(), row_order.end(), 0);
  std::shuffle(row_order.begin(), row_order.end(), random_);
  for (size_t s = 0; s < sequences.size(); ++s) {
    Sequence& sequence = sequences[s];
    const int64_t seen = sequence.done - shape.window + 1 - ops_.attention_lookback();
    const int64_t passed = shape.window > 0 ? std::max<int64_t>(0, seen) / shape.block_size : 0;
    for (int64_t i = 0; i < q_lens[s]; ++i) {
      const int64_t position = sequence.done + i;
      const int32_t block = sequence.blocks[static_cast<size_t>(position / shape.block_size)];
      std::memcpy(
          qkv.values<std::byte>().data() + static_cast<size_t>(q_begin.back() + i) * row_bytes,
          sequence.qkv.bytes().data() + static_cast<size_t>(position) * row_bytes, row_bytes);
      const bool is_tree = !trees.empty() && !trees[s].empty();
      ancestors.push_back(0);
      if (is_tree) ancestors.back() = uint64_t{1} << i;
      if (is_tree && i > 0) {
        const auto parent = static_cast<size_t>(trees[s][static_cast<size_t>(i)]);
        ancestors.back() |= ancestors[static_cast<size_t>(q_begin.back()) + parent];
      }
      const int64_t at = is_tree ? sequence.done + std::popcount(ancestors.back()) - 1 : position;
      rope_row.push_back(static_cast<int32_t>(at));
      slots.push_back(static_cast<int32_t>(block * shape.block_size + position % shape.block_size));
    }
    sequence.done += q_lens[s];
    q_begin.push_back(q_begin.back() + static_cast<int32_t>(q_lens[s]));
    kv_len.push_back(static_cast<int32_t>(sequence.done));
    table_row.push_back(row_order[s]);
    const size_t row = group_begin + static_cast<size_t>(row_order[s]) * max_blocks;
    std::copy(sequence.blocks.begin() + passed, sequence.blocks.end(),
              table.begin() + static_cast<int64_t>(row) + passed);
  }
  for (int64_t i = 0; i < padding; ++i) {
    rope_row.push_back(0);
    ancestors.push_back(0);
    slots.push_back(-1);
    q_begin.push_back(q_begin.back() + 1);
    kv_len.push_back(0);
    table_row.push_back(row_order.back());
  }
  const View q = poisoned({total, q_width});
  ops_.qkv_prep({device_.put(qkv), static_cast<int32_t>(shape.heads), layer.q_norm, layer.k_norm,
                 layer.rope, device_.put(rope_row), device_.put(slots), layer.kv, q, layer.v_norm,
                 shape.norms_rotated, layer.q_scale});
  last_batch_ = {.q_begin = device_.put(q_begin),
                 .kv_len = device_.put(kv_len),
                 .table_row = device_.put(table_row),
                 .block_table = device_.put_as(
                     std::span<const int32_t>(table), DType::kI32,
                     {3 * static_cast<int64_t>(table_rows), static_cast<int64_t>(max_blocks)}),
                 .max_q_len = static_cast<int32_t>(*std::max_element(q_lens.begin(), q_lens.end())),
                 .max_kv_len = *std::max_element(kv_len.begin(), kv_len.end()),
                 .group_rows = static_cast<int32_t>(table_rows)};
  if (!trees.empty()) {
    last_batch_.ancestors =
        device_.put_as(std::span<const uint64_t>(ancestors), DType::kI64, {total});
  }
  ops_.begin_attention(last_batch_);
  const View out = poisoned({total, q_width});
  last_args_ = {q,
                layer.kv,
                static_cast<int32_t>(shape.heads),
                score_scale(shape),
                static_cast<int32_t>(shape.window),
                shape.softcap,
                out,
                layer.device_sinks,
                layer.gate};
  ops_.attention(last_args_);
  return out;
}

namespace {

TEST_P(OpsAttention, AgreesWithTheFormulas) {
  constexpr int64_t kLengths[] = {1, 2, 7, 15, 16, 17, 31, 48, 63, 64, 65, 100, 131};
  for (int round = 0; round < 32; ++round) {
    Layer layer = make_layer(fuzzed_shape(), 4 * 131);
    std::vector<Sequence> sequences;
    std::vector<int64_t> history;
    std::vector<int64_t> q_lens;
    for (int64_t count = between(1, 4); count > 0; --count) {
      const int64_t length = pick(kLengths);
      sequences.push_back(make_sequence(layer, length));
      q_lens.push_back(between(1, 2) == 1 ? 1 : between(1, length));
      history.push_back(length - q_lens.back());
    }
    run_step(layer, sequences, history);
    const View out = run_step(layer, sequences, q_lens);
    int64_t row = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      std::ostringstream what;
      what << "round " << round << ": " << q_lens[s] << " after " << history[s] << ", head_dim "
           << layer.shape.head_dim << ", heads " << layer.shape.heads << "/" << layer.shape.kv_heads
           << ", block " << layer.shape.block_size << ", window " << layer.shape.window << ", cap "
           << layer.shape.softcap << (layer.shape.has_v_norm ? ", v-norm" : "")
           << (layer.shape.norms_rotated ? ", norms behind the rotation" : "")
           << (layer.shape.has_q_scale ? ", scaled queries" : "")
           << (layer.shape.has_sinks ? ", sinks" : "") << ", gate " << layer.shape.gate_length;
      expect_formula(out.rows(row, q_lens[s]), last_args_.q.rows(row, q_lens[s]), layer,
                     sequences[s], history[s] + q_lens[s], what.str());
      row += q_lens[s];
    }
  }
}

// Behind contexts that backends cut along their keys, of sinks that are all of a denominator and
// nothing of it too.
TEST_P(OpsAttention, ASinkCountsOnce) {
  struct Case {
    int64_t head_dim, window, context, tokens;
  };
  for (const Case& c :
       {Case{64, 0, 900, 70}, Case{128, 0, 900, 70}, Case{64, 100, 300, 70}, Case{64, 0, 300, 1},
        Case{96, 100, 300, 5}, Case{128, 0, 300, 5}, Case{256, 0, 300, 1}, Case{512, 0, 300, 1}}) {
    const std::string what = "head_dim " + std::to_string(c.head_dim) + ", window " +
                             std::to_string(c.window) + ": " + std::to_string(c.tokens) +
                             " behind " + std::to_string(c.context);
    Layer layer = make_layer(
        {.heads = 4, .kv_heads = 1, .head_dim = c.head_dim, .window = c.window, .has_sinks = true},
        c.context + c.tokens);
    layer.sinks[0] = 1e4f;
    layer.sinks[1] = -1e4f;
    layer.device_sinks = device_.put(HostTensor(layer.sinks, DType::kF32, {layer.shape.heads}));
    std::vector<Sequence> sequences;
    sequences.push_back(make_sequence(layer, c.context + c.tokens));
    run_step(layer, sequences, std::span(&c.context, 1));
    const View out = run_step(layer, sequences, std::span(&c.tokens, 1));
    expect_formula(out, last_args_.q, layer, sequences[0], c.context + c.tokens, what, kOfMany);
    const Matrix of_first = read(out).slice(0, c.tokens, 0, c.head_dim);
    EXPECT_EQ(max_difference(of_first, Matrix(c.tokens, c.head_dim)), 0) << what;
  }
}

TEST_P(OpsAttention, PaddingTokensWriteNothing) {
  for (const int64_t head_dim : GetParam().head_dims) {
    AttentionShape shape;
    shape.head_dim = head_dim;
    shape.block_size = GetParam().block_sizes.front();
    const Layer layer = make_layer(shape, 64);
    const int64_t width = (shape.heads + 2 * shape.kv_heads) * head_dim;
    const std::vector<int32_t> rope_row(3, 0);
    const std::vector<int32_t> slots(3, -1);
    const HostTensor before = device_.get(layer.kv.storage);
    const View q = poisoned({3, shape.heads * head_dim});
    const View qkv = random({3, width});
    const Matrix input = read(qkv);
    ops_.qkv_prep({qkv,
                   static_cast<int32_t>(shape.heads),
                   {},
                   {},
                   {},
                   device_.put(rope_row),
                   device_.put(slots),
                   layer.kv,
                   q});
    EXPECT_TRUE(std::ranges::equal(before.bytes(), device_.get(layer.kv.storage).bytes()));
    EXPECT_EQ(max_difference(read(q), input.slice(0, 3, 0, q.shape[1])), 0);
  }
}

// Of a layer that reads another's keys and values: queries are as they are beside keys.
TEST_P(OpsAttention, QueriesAloneAreAsBesideKeys) {
  for (int round = 0; round < 12; ++round) {
    const AttentionShape shape = fuzzed_shape();
    const Layer layer = make_layer(shape, 64);
    const int64_t tokens = between(1, 5);
    const int64_t q_width = shape.heads * shape.head_dim;
    const HostTensor beside(random_values(tokens * (q_width + 2 * shape.kv_heads * shape.head_dim)),
                            act_, {tokens, q_width + 2 * shape.kv_heads * shape.head_dim});
    const Matrix all = to_matrix(beside.view()).slice(0, tokens, 0, q_width);
    const std::vector<float> queries(all.values.begin(), all.values.end());
    const HostTensor alone(queries, act_, {tokens, q_width});
    std::vector<int32_t> rope_row;
    rope_row.reserve(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
      rope_row.push_back(static_cast<int32_t>(between(0, kMaxPositions - 1)));
    }
    const View slots = device_.put(std::vector<int32_t>(static_cast<size_t>(tokens), -1));
    ops::QkvPrepArgs args{.qkv = device_.put(beside),
                          .num_heads = static_cast<int32_t>(shape.heads),
                          .q_norm = layer.q_norm,
                          .k_norm = layer.k_norm,
                          .rope = layer.rope,
                          .rope_row = device_.put(rope_row),
                          .kv_slot = slots,
                          .kv = layer.kv,
                          .q_out = poisoned({tokens, q_width}),
                          .norms_rotated = shape.norms_rotated,
                          .q_scale = layer.q_scale};
    ops_.qkv_prep(args);
    const Matrix expected = read(args.q_out);
    args.qkv = device_.put(alone);
    args.k_norm = {};
    args.kv.num_kv_heads = 0;
    args.q_out = poisoned({tokens, q_width});
    const HostTensor before = device_.get(layer.kv.storage);
    ops_.qkv_prep(args);
    EXPECT_LE(max_difference(read(args.q_out), expected), act_unit() * max_abs(expected) + 1e-6)
        << "round " << round << ", head_dim " << shape.head_dim << ", norm of "
        << shape.q_norm_width;
    EXPECT_TRUE(std::ranges::equal(before.bytes(), device_.get(layer.kv.storage).bytes()));
  }
}

// Rows of padding beside sequences: zeros, and nothing of the others changes.
TEST_P(OpsAttention, PaddingSequencesGiveZeros) {
  for (int round = 0; round < 8; ++round) {
    const AttentionShape shape = fuzzed_shape();
    Layer layer = make_layer(shape, 70 + 33);
    std::vector<Sequence> sequences;
    sequences.push_back(make_sequence(layer, 70));
    sequences.push_back(make_sequence(layer, 33));
    const int64_t history[] = {69, 32};
    const int64_t one_each[] = {1, 1};
    run_step(layer, sequences, history);
    const View plain = run_step(layer, sequences, one_each);
    for (Sequence& sequence : sequences) --sequence.done;
    const View padded = run_step(layer, sequences, one_each, 6);
    expect_same_rows(padded.rows(0, 2), plain, "round " + std::to_string(round));
    EXPECT_EQ(max_abs(read(padded.rows(2, 6))), 0);
  }
}

// Scores far apart: the softmax must neither overflow nor lose the one position that counts. The
// numbers are whole and have four bits, so that no dtype rounds them: of scores so large a rounding
// would choose another position. Where tokens have scales, the largest of a head makes its scale 1.
TEST_P(OpsAttention, ExtremeScores) {
  AttentionShape shape;
  Layer layer = make_layer(shape, 130);
  std::vector<Sequence> sequences;
  sequences.push_back(make_sequence(layer, 130));
  const int64_t width = sequences[0].qkv.view().shape[1];
  std::vector<float> values(static_cast<size_t>(130 * width));
  for (float& value : values) value = static_cast<float>(8 * between(-15, 15));
  const ops::KvFormat kv = ops_.kv_format();
  for (int64_t head = shape.heads; kv.scales_tokens && head * shape.head_dim < width; ++head) {
    for (int64_t token = 0; token < 130; ++token) {
      values[static_cast<size_t>(token * width + head * shape.head_dim)] =
          ops::largest_code(kv.dtype);
    }
  }
  sequences[0].qkv = HostTensor(values, act_, {130, width});
  const int64_t all[] = {130};
  const View out = run_step(layer, sequences, all);
  expect_formula(out, last_args_.q, layer, sequences[0], 130, "");
}

// Whatever turns scores into weights, a clip too: a query that is NaN makes its row NaN, and no
// other row.
TEST_P(OpsAttention, AQueryThatIsNaNMakesItsRowNaN) {
  for (int round = 0; round < 12; ++round) {
    AttentionShape shape = fuzzed_shape();
    if (round % 2 == 0) {
      shape.gate_length = static_cast<int32_t>(between(1, ops::kMaxFirLength));
      shape.has_sinks = false;
      shape.softcap = 0;
    }
    Layer layer = make_layer(shape, 90 + 33);
    std::vector<Sequence> sequences;
    sequences.push_back(make_sequence(layer, 90));
    sequences.push_back(make_sequence(layer, 33));
    const int64_t num_rows = round % 3 == 0 ? 20 : 1;  // of the first sequence
    const int64_t history[] = {90 - num_rows, 32};
    const int64_t q_lens[] = {num_rows, 1};
    run_step(layer, sequences, history);
    const View plain = run_step(layer, sequences, q_lens);
    const int64_t head = between(0, shape.heads - 1);
    const Matrix qkv = to_matrix(sequences[0].qkv.view());
    std::vector<float> values(qkv.values.begin(), qkv.values.end());
    values[static_cast<size_t>(89 * qkv.cols + head * shape.head_dim)] =
        std::numeric_limits<float>::quiet_NaN();
    sequences[0].qkv = HostTensor(values, act_, {90, qkv.cols});
    sequences[0].done -= num_rows;
    --sequences[1].done;
    const View out = run_step(layer, sequences, q_lens);
    const std::string what = "round " + std::to_string(round) + ", gate " +
                             std::to_string(shape.gate_length) + ", head_dim " +
                             std::to_string(shape.head_dim);
    const Matrix poisoned_row =
        read(out.rows(num_rows - 1, 1)).slice(0, 1, head * shape.head_dim, shape.head_dim);
    for (const double value : poisoned_row.values) EXPECT_TRUE(std::isnan(value)) << what;
    if (num_rows > 1) {
      expect_same_rows(out.rows(0, num_rows - 1), plain.rows(0, num_rows - 1), what);
    }
    expect_same_rows(out.rows(num_rows, 1), plain.rows(num_rows, 1), what);
  }
}

TEST_P(OpsAttention, ChunksBatchesAndThreadsDoNotChangeARow) {
  for (int round = 0; round < 24; ++round) {
    const AttentionShape shape = fuzzed_shape();
    Layer layer = make_layer(shape, 150 + 100 + 150);
    std::vector<Sequence> whole;
    whole.push_back(make_sequence(layer, between(2, 150)));
    const int64_t length = whole[0].qkv.view().shape[0];
    const View at_once = run_step(layer, whole, std::span(&length, 1));

    // The same tokens in chunks, in other blocks, beside another sequence that decodes.
    std::vector<Sequence> chunked;
    chunked.push_back(make_sequence(layer, 100));
    chunked.push_back(make_sequence(layer, length));
    chunked[1].qkv = whole[0].qkv;
    for (int64_t done = 0; done < length;) {
      const int64_t chunk = std::min(between(1, 40), length - done);
      const int64_t q_lens[] = {1, chunk};
      const View out = run_step(layer, chunked, q_lens);
      expect_same_attention(out.rows(1, chunk), at_once.rows(done, chunk),
                            last_args_.q.rows(1, chunk), layer, whole[0], done + chunk,
                            "chunk of " + std::to_string(chunk) + " at " + std::to_string(done) +
                                ", round " + std::to_string(round));
      done += chunk;
      if (chunked[0].done == 100) chunked[0].done = 0;
    }
  }
}

}  // namespace
}  // namespace rudder::testing
