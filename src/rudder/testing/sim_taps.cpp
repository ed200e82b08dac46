#include "rudder/testing/sim_taps.h"

#include <algorithm>
#include <utility>

#include "rudder/testing/fake_taps.h"

namespace rudder::testing {
namespace {

constexpr int32_t kPrograms = 8;

steer::KeyedProgram make_program(uint64_t number, FakeProgramKind kind) {
  return {.key = {number, 1}, .program = fake_program(number, kind)};
}

// `anchor`: what a program does may depend on where the generation begins; then so must its key.
void add_segment(std::vector<tap::TapSegment>& segments, int32_t begin,
                 const steer::KeyedProgram& keyed, int32_t anchor = 0) {
  segments.push_back({.begin = begin,
                      .content = {keyed.key.low, keyed.key.high + static_cast<uint64_t>(anchor)},
                      .program = keyed.program});
}

const steer::KeyedProgram& any_program(const SimTaps& taps, SimRandom& random) {
  return taps.programs[random.next() % taps.programs.size()];
}

// The thoughts of an answer run other programs than the rest of it.
tap::Thoughts draw_thoughts(const SimTaps& taps, int32_t prompt_len, int32_t vocab_size,
                            SimRandom& random) {
  tap::Thoughts thoughts{.begin_token = random.in(0, vocab_size - 1),
                         .end_token = random.in(0, vocab_size - 1),
                         .open = !random.one_in(3),
                         .segments = {}};
  add_segment(thoughts.segments, 0, any_program(taps, random));
  if (random.one_in(2)) {
    add_segment(thoughts.segments, prompt_len + random.in(1, 8), any_program(taps, random));
  }
  return thoughts;
}

void draw_segments(const SimTaps& taps, int32_t prompt_len, int32_t vocab_size, SimRandom& random,
                   tap::SequenceTaps& out) {
  if (random.one_in(6)) {
    out.needs_whole_prompt = true;
    const bool writes_first = prompt_len > 1 && random.one_in(2);
    if (writes_first) add_segment(out.segments, 0, taps.writes_latch);
    add_segment(out.segments, writes_first ? prompt_len - 1 : 0, taps.uses_latch, prompt_len);
    return;
  }
  if (random.one_in(6)) {
    out.is_controlled = true;
    if (prompt_len > 1) add_segment(out.segments, 0, any_program(taps, random));
    add_segment(out.segments, prompt_len - 1, taps.controls, prompt_len);
    return;
  }
  int32_t begin = 0;
  for (int32_t i = random.in(1, 4); i > 0; --i) {
    const bool none = random.one_in(4);
    if (none) {
      add_segment(out.segments, begin, {});
    } else if (random.one_in(8)) {
      out.is_scheduled = true;
      add_segment(out.segments, begin, taps.scheduled, prompt_len);
    } else {
      add_segment(out.segments, begin, any_program(taps, random));
    }
    begin = random.one_in(3) ? std::max(begin + 1, prompt_len) : begin + random.in(1, 16);
  }
  if (random.one_in(4)) out.thoughts = draw_thoughts(taps, prompt_len, vocab_size, random);
}

// Ends choices on rows that the fake executor makes up: half of them are above it.
void add_stop(steer::capture::CaptureSpec& spec, const tap::CapturePoint& point,
              const tap::Geometry& geometry, SimRandom& random) {
  std::vector<int64_t> offsets;
  tap::record_elements(*spec.set, geometry, &offsets);
  const auto width = geometry.width(point.point);
  auto vector = std::make_shared<float[]>(static_cast<size_t>(width));
  vector[0] = 1;
  spec.stop_when = {.watch = {.point = point, .vector = {vector, 0, width}},
                    .above = 0,
                    .count = random.in(1, 4)};
  spec.stop_offset = offsets[spec.set->points.size() - 1];
  spec.stop_width = width;
  spec.stop_dtype = geometry.dtype_at(point.point);
  spec.asks.emplace_back();  // somebody else gets the rows too
}

}  // namespace

SimTaps draw_sim_taps(step::Capacity& capacity, SimRandom& random) {
  SimTaps taps;
  taps.enabled = random.one_in(2);
  if (!taps.enabled) return taps;
  capacity.geometry = {.num_layers = 2,
                       .hidden = 8,
                       .mlp_width = {16, 16},
                       .heads = {{2, 4}, {2, 4}},
                       .sites = {tap::kDenseSites, tap::kDenseSites},
                       .dtype = tensor::DType::kBF16};
  capacity.taps = {.num_rows = random.pick({2, 3, 5, 16}),
                   .num_ops = random.in(4, 16),
                   .num_floats = random.in(2, 16) * tap::kVectorAlign,
                   .num_capture_sets = random.in(1, 3),
                   .capture_elements = random.in(2, 16) * tap::kCaptureAlign,
                   .patterns = true};
  for (uint64_t number = 1; number <= kPrograms; ++number) {
    taps.programs.push_back(make_program(number, FakeProgramKind::kPlain));
  }
  taps.scheduled = make_program(kPrograms + 1, FakeProgramKind::kScheduled);
  taps.writes_latch = make_program(kPrograms + 2, FakeProgramKind::kWritesLatch);
  taps.uses_latch = make_program(kPrograms + 3, FakeProgramKind::kUsesLatch);
  taps.controls = make_program(kPrograms + 4, FakeProgramKind::kControls);
  for (int32_t number = 1; number <= 6; ++number) {
    const int32_t points = number <= 4 ? number : number - 4;
    auto set = std::make_shared<tap::CaptureSet>();
    for (int32_t i = 0; i < points; ++i) {
      set->points.push_back({.point = {i % 2, tap::Site::kResidPost}, .after = i >= 2});
    }
    if (number % 2 == 0) {  // a pattern in place of the last point
      set->points.pop_back();
      set->patterns = {{.layer = 1, .keys = 5 * number, .heads = {0, 2}}};
    }
    auto spec = std::make_shared<steer::capture::CaptureSpec>();
    spec->id = steer::capture::SpecId(static_cast<uint64_t>(number));
    spec->set = set;
    if (number > 4) add_stop(*spec, set->points.back(), capacity.geometry, random);
    taps.captures.push_back(spec);
  }
  return taps;
}

std::shared_ptr<const tap::SequenceTaps> draw_request_taps(const SimTaps& taps, int32_t vocab_size,
                                                           engine::RequestParams& params,
                                                           SimRandom& random) {
  if (!taps.enabled || random.one_in(3)) return nullptr;
  auto drawn = std::make_shared<tap::SequenceTaps>();
  const auto prompt_len = static_cast<int32_t>(params.prompt.size());
  const bool captures = random.one_in(3);
  if (!captures || random.one_in(2)) draw_segments(taps, prompt_len, vocab_size, random, *drawn);
  if (captures) {
    const auto& spec = taps.captures[random.next() % taps.captures.size()];
    params.capture = spec->id;
    params.capture_delivery.events = random.one_in(2);
    params.capture_delivery.results = !random.one_in(4);
    drawn->capture = spec->set;
    if (spec->stop_when) {  // and the engine reads every generated token
      drawn->captured.push_back({random.in(0, prompt_len), tap::kNoEnd});
      return drawn;
    }
    int32_t begin = random.one_in(3) ? prompt_len - 1 : random.in(0, prompt_len);
    for (int32_t i = random.in(1, 3); i > 0; --i) {
      const int32_t end = random.one_in(5) ? tap::kNoEnd : begin + random.in(1, 8);
      drawn->captured.push_back({begin, end});
      if (end == tap::kNoEnd) break;
      begin = end + random.in(0, 5);
    }
  }
  return drawn;
}

}  // namespace rudder::testing
