#include "rudder/testing/tap_table.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/tap/passage.h"

namespace rudder::testing {

using tensor::DType;

namespace {

int32_t moved(int32_t offset, int64_t base) {
  return offset == tap::kNoVector ? offset : offset + static_cast<int32_t>(base);
}

tap::TapOp moved(tap::TapOp op, int64_t base) {
  op.v1 = moved(op.v1, base);
  op.v2 = moved(op.v2, base);
  op.gate_vector = moved(op.gate_vector, base);
  return op;
}

}  // namespace

ops::TapTable put_tap_table(Device& device, const tap::Geometry& geometry,
                            std::span<const tap::Program> programs,
                            std::span<const tap::CaptureSet> sets, int64_t num_slots,
                            int64_t ring_elements, ops::Rank rank) {
  const auto num_points = static_cast<size_t>(geometry.num_points());
  std::vector<ops::TapEntry> points((programs.size() + 1) * num_points);
  std::vector<tap::TapOp> ops;
  std::vector<float> vectors;
  for (size_t i = 0; i < programs.size(); ++i) {
    for (const tap::ProgramOp& op : programs[i].ops) {
      const auto point = static_cast<size_t>(op.point.index());
      const tap::TapOp placed = moved(op.op, static_cast<int64_t>(vectors.size()));
      points[(i + 1) * num_points + point].add(std::ssize(ops), placed);
      ops.push_back(placed);
    }
    vectors.insert(vectors.end(), programs[i].vectors.begin(), programs[i].vectors.end());
    vectors.resize((vectors.size() + 15) / 16 * 16);
  }
  std::vector<int32_t> captures(std::max<size_t>(sets.size(), 1) * num_points * 2, -1);
  const auto num_layers = static_cast<size_t>(geometry.num_layers);
  std::vector<ops::PatternEntry> patterns(sets.size() * num_layers);
  for (size_t i = 0; i < sets.size(); ++i) {
    std::vector<int64_t> offsets;
    record_elements(sets[i], geometry, &offsets);
    for (size_t k = 0; k < sets[i].patterns.size(); ++k) {
      const tap::CapturePattern& asked = sets[i].patterns[k];
      ops::PatternEntry& entry = patterns[i * num_layers + static_cast<size_t>(asked.layer)];
      entry.keys = asked.keys;
      const int32_t count = geometry.heads[static_cast<size_t>(asked.layer)].count / rank.count;
      for (const int32_t head : asked.heads) {
        const int32_t own = head - rank.index * count;
        if (own < 0) ++entry.first_row;
        if (own < 0 || own >= count) continue;
        entry.heads[own / 32] |= 1U << (own % 32);
        entry.offset =
            static_cast<int32_t>(offsets[sets[i].points.size() + k] / tap::kCaptureAlign);
      }
    }
    for (size_t k = 0; k < sets[i].points.size(); ++k) {
      const tap::CapturePoint& at = sets[i].points[k];
      const auto point = static_cast<size_t>(at.point.index());
      captures[(i * num_points + point) * 2 + (at.after ? 1 : 0)] =
          static_cast<int32_t>(offsets[k] / tap::kCaptureAlign);
    }
  }
  if (ops.empty()) ops.resize(1);
  vectors.resize(std::max<size_t>(vectors.size(), 16));

  const auto rows = static_cast<int64_t>(programs.size()) + 1;
  const auto width = static_cast<int64_t>(num_points);
  ops::TapTable table;
  table.points =
      device.put_as<ops::TapEntry>(points, DType::kI32, {rows, width, ops::kTapEntryWords});
  table.ops = device.put_as<tap::TapOp>(
      ops, DType::kI32,
      {static_cast<int64_t>(ops.size()), int64_t{sizeof(tap::TapOp) / sizeof(int32_t)}});
  table.vectors =
      device.put_as<float>(vectors, DType::kF32, {static_cast<int64_t>(vectors.size())});
  table.captures = device.put_as<int32_t>(
      captures, DType::kI32, {static_cast<int64_t>(captures.size()) / (2 * width), width, 2});
  if (!patterns.empty()) {
    table.patterns = device.put_as<ops::PatternEntry>(
        patterns, DType::kI32, {std::ssize(sets), geometry.num_layers, ops::kPatternWords});
    table.pattern_sums =
        device.ops().allocate(DType::kF32, {ring_elements / ops::kPatternSumElements, 2}).value();
  }
  table.latches = device.ops().allocate(DType::kI64, {num_slots + 1, tap::kNumLatches, 2}).value();
  table.relays = device.put(HostTensor(
      std::vector<float>(static_cast<size_t>(kMaxTapTokens) * static_cast<size_t>(tap::kNumRelays)),
      DType::kF32, {kMaxTapTokens, tap::kNumRelays}));
  HostTensor ring(device.ops().act_dtype(), {std::max<int64_t>(ring_elements, 1)});
  std::ranges::fill(ring.values<uint8_t>(), uint8_t{0xff});
  table.ring = device.put(ring);
  return table;
}

ops::TapBatch put_tap_batch(Device& device, const ops::TapTable& table,
                            std::span<const TapToken> tokens) {
  const auto column = [&](int32_t TapToken::*member) {
    std::vector<int32_t> values;
    for (const TapToken& token : tokens) values.push_back(token.*member);
    return device.put(values);
  };
  RUDDER_CHECK(std::ssize(tokens) <= kMaxTapTokens);
  std::vector<int32_t> order(tokens.size());  // of relays: not that of the tokens
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(order.size() - 1 - i);
  ops::TapBatch batch;
  batch.row = column(&TapToken::row);
  batch.since_prompt = column(&TapToken::since_prompt);
  batch.slot = column(&TapToken::slot);
  batch.capture_set = column(&TapToken::capture_set);
  batch.capture_begin = column(&TapToken::capture_begin);
  batch.token = device.put(order);
  batch.entries = device.put(
      HostTensor(DType::kI32, {std::ssize(tokens), table.points.shape[1], ops::kTapEntryWords}));
  ops::BeginStepArgs begin;
  begin.tap_table = &table;
  begin.taps = batch;
  device.ops().begin_step(begin);
  // Waits for them, too: no op that follows reads them early (tap.T9).
  const std::vector<ops::TapEntry> entries = device.values<ops::TapEntry>(batch.entries);
  batch.only_adds = true;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto site = static_cast<tap::Site>(i % static_cast<size_t>(tap::kNumSites));
    batch.only_adds = batch.only_adds && (tap::is_residual(site) ? entries[i].adds_at_most()
                                                                 : entries[i] == ops::TapEntry{});
  }
  return batch;
}

}  // namespace rudder::testing
