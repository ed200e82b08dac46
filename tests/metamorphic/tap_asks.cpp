#include "metamorphic/tap_asks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rudder/features/dictionary_image.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/steer/features/test_dictionary.h"
#include "rudder/tap/passage.h"

namespace rudder::metamorphic {
namespace {

using tap::OpKind;
using tap::Point;
using tap::Site;

constexpr int32_t kFeatures = 24;  // of a dictionary

// Makes v1 of `op`, the program's last vector but those of a gate, one of some heads; returns the
// vector that says which.
int32_t some_heads(tap::Program& program, const tap::Heads& heads, tap::TapOp& op,
                   std::mt19937& engine) {
  std::vector<float> chosen(static_cast<size_t>(heads.width()));
  const auto kept = static_cast<int32_t>(engine() % static_cast<unsigned>(heads.count));
  double squares = 0;
  for (int32_t i = 0; i < heads.width(); ++i) {
    const bool is_kept = i / heads.dim == kept || i / heads.dim % 3 == 1;
    float& value = program.vectors[static_cast<size_t>(op.v1 + i)];
    chosen[static_cast<size_t>(i)] = is_kept ? 1.0f : 0.0f;
    if (!is_kept) value = 0;
    squares += double{value} * double{value};
  }
  if (op.kind == OpKind::kAddRenorm) op.sum = static_cast<float>(squares);
  const auto begin = static_cast<int32_t>(program.vectors.size());
  program.vectors.insert(program.vectors.end(), chosen.begin(), chosen.end());
  program.vectors.resize((program.vectors.size() + 15) / 16 * 16);
  return begin;
}

class TapMaker {
 public:
  TapMaker(const step::Capacity& capacity, uint32_t seed)
      : geometry_(capacity.geometry),
        encodes_(capacity.taps.max_features > 0),
        engine_(seed),
        encode_engine_(seed) {}

  int32_t below(int32_t n) { return static_cast<int32_t>(engine_() % static_cast<unsigned>(n)); }

  Point random_point() {
    for (;;) {
      const Point point{below(geometry_.num_layers), static_cast<Site>(below(tap::kNumSites))};
      if (geometry_.has(point) && takes_ops(point.site)) return point;
    }
  }

  // What fills a latch, or reads it. A gate at a point of the prompt lies behind the scores' op
  // (tap.T10); generated tokens have gates anywhere.
  enum class Latch : uint8_t { kNone, kFilled, kGenerated };

  // Some ops, points ascending; latches are filled at `score_point`.
  tap::Program program(Latch latch, Point score_point = {}) {
    std::vector<Point> points(static_cast<size_t>(2 + below(5)));
    for (Point& point : points) point = random_point();
    std::ranges::sort(points, {}, &Point::index);
    tap::Program made;
    tap::TapOp score;
    score.kind = OpKind::kScore;
    score.latch = 1;
    bool has_score = latch != Latch::kFilled;
    Point relayed_from;
    int32_t num_relays = 0;
    bool is_relayed = false;  // the last relay was left by an op, and none has read it
    for (const Point point : points) {
      if (!has_score && point.index() >= score_point.index()) {
        add_op(made, geometry_, score_point, score, 1, engine_);
        has_score = true;
      }
      tap::TapOp op = random_op();
      if (point.site == Site::kRouterLogits && below(2) == 0) op = random_map(point.layer);
      const bool is_behind = stage_of(point) > stage_of(score_point);
      if (latch == Latch::kGenerated || (latch == Latch::kFilled && is_behind)) {
        op.gate = tap::GateKind::kScoreSoft;
        op.latch = 1;
        op.sharpness = 3;
      }
      if (is_relayed && point.index() > relayed_from.index()) {
        tap::TapOp write = op;
        write.kind = OpKind::kFeature;
        write.norm = tap::FeatureNorm::kNone;
        write.run = 1;
        write.relay = num_relays - 1;
        add_op(made, geometry_, point, write, 1, engine_);
        made.ops.back().op.v2 = tap::kNoVector;
        is_relayed = false;
      }
      if (!made.ops.empty() && made.ops.back().point != point) add_encode(made);
      add_op(made, geometry_, point, op, op.kind == OpKind::kAdd ? 3 : 1, engine_);
      if (op.kind == OpKind::kFeature && below(2) == 0) {
        made.ops.back().op.v1 = tap::kNoVector;
        made.ops.back().op.relay = num_relays++;
        relayed_from = point;
        is_relayed = true;
        continue;
      }
      if (op.kind != OpKind::kFeature || below(2) == 0) continue;
      // A second feature that reads the same row.
      made.ops.back().op.run = 2;
      op.run = 0;
      op.value = -2;
      add_op(made, geometry_, point, op, 1, engine_);
    }
    if (!has_score) {
      add_op(made, geometry_, score_point, score, 1, engine_);
    } else {
      add_encode(made);
    }
    return made;
  }

  // Any program, some of whose ops a control gates by what the token before left at another point:
  // as steer makes them, but for the order of ops at a point.
  tap::Program controlled() {
    tap::Program made = program(Latch::kNone);
    for (tap::ProgramOp& op : made.ops) {
      const bool is_gated = op.op.kind != OpKind::kEncode && op.op.kind != OpKind::kEncoded &&
                            op.op.schedule != tap::ScheduleKind::kRamp && below(3) != 0;
      if (!is_gated) continue;
      op.op.gate = tap::GateKind::kControl;
      op.op.gate_vector = tap::kNoVector;
      op.op.latch = below(2);
      op.op.threshold = 0.5f;
      op.op.sharpness = 1.5f;
      op.op.from = -0.5f;
      op.op.to = 1.25f;
    }
    for (const int32_t latch : {0, 1}) add_sense(made, latch);
    return made;
  }

  std::shared_ptr<const tap::CaptureSet> capture_set(bool has_patterns) {
    auto set = std::make_shared<tap::CaptureSet>();
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t site = 0; site < tap::kNumSites; ++site) {
        const Point point{layer, static_cast<Site>(site)};
        if (!geometry_.has(point) || below(3) != 0) continue;
        const bool after = below(2) == 0;
        if (point.site == Site::kFinalNorm && after) continue;  // follows, in every set
        set->points.push_back({point, after});
      }
    }
    set->points.push_back({{geometry_.num_layers - 1, Site::kFinalNorm}, true});
    if (has_patterns) add_patterns(*set);
    return set;
  }

 private:
  // In front of the ops of its point, which is drawn.
  void add_sense(tap::Program& made, int32_t latch) {
    const Point point = random_point();
    tap::TapOp sense;
    sense.kind = OpKind::kSense;
    sense.latch = latch;
    sense.hi = below(2) == 0 ? 1.0f : 0.0f;
    sense.a = 1;
    sense.b = 0.25f;
    add_op(made, geometry_, point, sense, 1, engine_);
    const tap::ProgramOp added = made.ops.back();
    made.ops.pop_back();
    const auto at = std::ranges::lower_bound(
        made.ops, point.index(), {}, [](const tap::ProgramOp& op) { return op.point.index(); });
    made.ops.insert(at, added);
  }

  // Of some layers and heads; rows are shorter than some sequences get, and of one layer longer.
  void add_patterns(tap::CaptureSet& set) const {
    for (int32_t layer = 0; layer < geometry_.num_layers; layer += 1 + layer % 2) {
      tap::CapturePattern pattern{.layer = layer, .keys = layer % 2 == 0 ? 256 : 40, .heads = {}};
      const int32_t count = geometry_.pattern_heads(layer);
      for (int32_t head = layer % 2; head < count; head += 2) pattern.heads.push_back(head);
      if (!pattern.heads.empty()) set.patterns.push_back(std::move(pattern));
    }
  }

  tap::TapOp random_op() {
    constexpr OpKind kKinds[] = {OpKind::kAdd,    OpKind::kAxis,    OpKind::kSwap,
                                 OpKind::kRotate, OpKind::kAddNorm, OpKind::kAddRenorm,
                                 OpKind::kPatch,  OpKind::kFeature};
    tap::TapOp op;
    op.kind = kKinds[below(8)];
    if (op.kind == OpKind::kFeature) {
      op.run = 1;
      op.norm = static_cast<tap::FeatureNorm>(below(3));
      op.edit = static_cast<tap::FeatureEdit>(below(5));
      op.value = 1.5f;
    }
    op.strength = 0.5f + 0.25f * static_cast<float>(below(4));
    op.a = op.kind == OpKind::kRotate ? 0.6f : 0.0f;
    op.b = op.kind == OpKind::kRotate ? 0.8f : 0.0f;
    op.lo = op.kind == OpKind::kAxis ? -std::numeric_limits<float>::infinity() : 0.0f;
    op.hi = std::numeric_limits<float>::infinity();
    if (op.kind == OpKind::kFeature) {
      op.a = 1;
      op.lo = below(2) == 0 ? 0.25f : -std::numeric_limits<float>::infinity();
      op.hi = below(2) == 0 ? 1.0f : 0.0f;
    }
    if (op.kind == OpKind::kAddNorm || op.kind == OpKind::kPatch) op.strength *= 0.3f;
    if (below(3) == 0) op.gate = tap::GateKind::kSoft;
    if (below(3) == 0) {
      op.schedule = below(2) == 0 ? tap::ScheduleKind::kRamp : tap::ScheduleKind::kWindow;
      op.begin = below(6) - 3;
      op.end = op.begin + 1 + below(8);
      op.from = 0;
      op.to = 1.5f;
    }
    return op;
  }

  // Which experts a router chooses first, and which last.
  tap::TapOp random_map(int32_t layer) {
    tap::TapOp op;
    op.kind = OpKind::kExperts;
    op.lo = geometry_.routing[static_cast<size_t>(layer)].by_scores ? 1.0f : 0.0f;
    if (below(3) == 0) op.gate = tap::GateKind::kSoft;
    return op;
  }

  int32_t drawn(int32_t n) {
    return static_cast<int32_t>(encode_engine_() % static_cast<unsigned>(n));
  }

  // At the last op's point and behind it, every other time, of one of a few dictionaries. Its draws
  // are its own: programs are otherwise those of a backend that encodes nothing.
  void add_encode(tap::Program& made) {
    if (!encodes_ || drawn(2) == 0) return;
    const Point point = made.ops.back().point;
    if (point.site == Site::kRouterLogits) return;  // no dictionary reads it
    const auto activation = static_cast<features::Activation>(drawn(4));
    const features::Dictionary dictionary =
        steer::random_dictionary({.width = geometry_.width(point),
                                  .num_features = kFeatures,
                                  .read = point,
                                  .write = point,
                                  .activation = activation,
                                  .norm = static_cast<tap::FeatureNorm>(drawn(3))},
                                 static_cast<uint64_t>(drawn(2)));
    tap::TapOp op;
    op.kind = OpKind::kEncode;
    op.v1 = static_cast<int32_t>(made.dictionaries.size());
    op.run = 1 + drawn(3);
    op.lo = drawn(3) == 0 ? 1.0f : 0.0f;
    const int32_t run = op.run;
    auto image = features::image_of(dictionary, {1, 2},
                                    drawn(2) == 0 ? tensor::DType::kF32 : tensor::DType::kBF16);
    for (size_t i = 0; i < made.dictionaries.size(); ++i) {
      if (made.dictionaries[i]->key == image->key) op.v1 = static_cast<int32_t>(i);
    }
    if (op.v1 == std::ssize(made.dictionaries)) made.dictionaries.push_back(std::move(image));
    made.ops.push_back({point, op});
    for (int32_t i = 1; i < run; ++i) {
      tap::TapOp clamp;
      clamp.kind = OpKind::kEncoded;
      clamp.feature = drawn(kFeatures);
      clamp.edit = static_cast<tap::FeatureEdit>(drawn(5));
      clamp.value = 0.5f * static_cast<float>(drawn(5));
      clamp.hi = drawn(2) == 0 ? 1.0f : 0.0f;
      if (drawn(3) == 0) {
        clamp.schedule = tap::ScheduleKind::kRamp;
        clamp.begin = -2;
        clamp.end = 6;
        clamp.to = 1;
      }
      made.ops.push_back({point, clamp});
    }
  }

  const tap::Geometry& geometry_;
  const bool encodes_;
  std::mt19937 engine_;
  std::mt19937 encode_engine_;
};

}  // namespace

tap::Geometry tapped_geometry(const model::ModelSpec& spec, tensor::DType act, ops::Rank rank) {
  static const bool taps_routers = [] {
    const std::unique_ptr<ops::Ops> ops = backends().front().make();
    return ops::router_taps_of(ops->expert_ops()) != nullptr;
  }();
  tap::Geometry geometry = model::tap_geometry(spec, act, rank);
  if (!taps_routers) geometry.leave_out_routers();
  return geometry;
}

step::Capacity with_taps(step::Capacity capacity, testing::TinyArch arch) {
  capacity.geometry = tapped_geometry(testing::tiny_spec(arch), tensor::DType::kF32);
  capacity.taps = {.num_rows = 64,
                   .num_ops = 2048,
                   .num_floats = 1 << 19,
                   .num_capture_sets = 32,
                   .capture_elements = 1 << 18};
  return capacity;
}

step::Capacity with_encodes(step::Capacity capacity, testing::TinyArch arch) {
  capacity = with_taps(std::move(capacity), arch);
  capacity.taps.max_features = kFeatures;
  capacity.taps.patterns = true;
  capacity.taps.num_floats = 1 << 21;
  capacity.taps.num_ops = 4096;
  return capacity;
}

void add_op(tap::Program& program, const tap::Geometry& geometry, Point point, tap::TapOp op,
            double length, std::mt19937& engine) {
  std::normal_distribution<double> normal;
  const auto vector = [&](double wanted) {
    std::vector<double> values(static_cast<size_t>(geometry.width(point)));
    double squares = 0;
    for (double& value : values) {
      value = normal(engine);
      squares += value * value;
    }
    const auto begin = static_cast<int32_t>(program.vectors.size());
    for (const double value : values) {
      program.vectors.push_back(static_cast<float>(value * wanted / std::sqrt(squares)));
    }
    program.vectors.resize((program.vectors.size() + 15) / 16 * 16);
    return begin;
  };
  op.v1 = vector(length);
  if (op.kind == OpKind::kExperts) {
    // About a third of them each way.
    for (int32_t i = 0; i < geometry.width(point); ++i) {
      float& value = program.vectors[static_cast<size_t>(op.v1 + i)];
      value = value > 0.15f ? 1.0f : value < -0.15f ? -1.0f : 0.0f;
    }
  }
  if (op.kind == OpKind::kAddRenorm) op.sum = static_cast<float>(length * length);
  if (op.kind == OpKind::kSwap || op.kind == OpKind::kRotate || op.kind == OpKind::kFeature) {
    op.v2 = vector(1);
  }
  if (op.gate == tap::GateKind::kSoft || op.gate == tap::GateKind::kHard) {
    op.gate_vector = vector(1);
  }
  const bool takes_heads =
      op.kind == OpKind::kPatch || op.kind == OpKind::kAddNorm || op.kind == OpKind::kAddRenorm;
  if (point.site == Site::kAttnZ && takes_heads && program.ops.size() % 2 == 0) {
    op.v2 = some_heads(program, geometry.heads[static_cast<size_t>(point.layer)], op, engine);
  }
  program.ops.push_back({point, op});
}

std::shared_ptr<const tap::SequenceTaps> steered_by(tap::Program program, uint64_t content) {
  auto taps = std::make_shared<tap::SequenceTaps>();
  taps->segments = {{0, {content, 1}, std::make_shared<const tap::Program>(std::move(program))}};
  return taps;
}

void add_few_taps(std::span<Ask> asks, const step::Capacity& capacity) {
  const tap::Geometry& geometry = capacity.geometry;
  constexpr OpKind kKinds[] = {OpKind::kAdd, OpKind::kAddNorm, OpKind::kFeature};
  std::mt19937 engine(23);
  std::vector<Point> points;
  for (int32_t i = 0; i < geometry.num_points(); ++i) {
    const Point point{i / tap::kNumSites, static_cast<Site>(i % tap::kNumSites)};
    if (geometry.has(point) && takes_ops(point.site)) points.push_back(point);
  }
  for (size_t i = 0; i < asks.size(); ++i) {
    tap::TapOp op;
    op.kind = kKinds[i % 3];
    op.strength = 0.5f;
    if (op.kind == OpKind::kFeature) {
      op.run = 1;
      op.a = 1;
      op.value = 2;
    }
    tap::Program program;
    const Point point = points[i * 5 % points.size()];
    const Point last = {geometry.num_layers - 1, Site::kResidPost};
    add_op(program, geometry, point, op, 3, engine);
    if (i % 4 == 3 && point.index() < last.index()) {
      op = {};
      op.strength = 0.5f;
      add_op(program, geometry, last, op, 3, engine);
    }
    asks[i].taps = steered_by(std::move(program), i + 1);
  }
}

void add_every_pattern(std::span<Ask> asks, const step::Capacity& capacity) {
  auto set = std::make_shared<tap::CaptureSet>();
  for (int32_t layer = 0; layer < capacity.geometry.num_layers; ++layer) {
    tap::CapturePattern pattern{.layer = layer, .keys = capacity.max_seq_len, .heads = {}};
    const int32_t count = capacity.geometry.pattern_heads(layer);
    for (int32_t head = 0; head < count; ++head) pattern.heads.push_back(head);
    if (count > 0) set->patterns.push_back(std::move(pattern));
  }
  for (Ask& ask : asks) {
    auto taps = std::make_shared<tap::SequenceTaps>();
    taps->capture = set;
    taps->captured = {{0, static_cast<int32_t>(ask.prompt.size())}};
    ask.taps = taps;
  }
}

void add_random_taps(std::span<Ask> asks, const step::Capacity& capacity, uint32_t seed) {
  TapMaker maker(capacity, seed);
  // Every second sequence that captures has attention patterns.
  const std::shared_ptr<const tap::CaptureSet> sets[] = {maker.capture_set(capacity.taps.patterns),
                                                         maker.capture_set(false)};
  size_t num_capturing = 0;
  uint64_t content = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    const auto prompt_len = static_cast<int32_t>(asks[i].prompt.size());
    auto taps = std::make_shared<tap::SequenceTaps>();
    const auto add_segment = [&](int32_t begin, tap::Program program) {
      tap::TapSegment segment{begin, {++content, 7}, nullptr};
      segment.program = std::make_shared<const tap::Program>(std::move(program));
      taps->segments.push_back(segment);
    };
    using Latch = TapMaker::Latch;
    if (i % 3 != 0) {
      taps->needs_whole_prompt = i % 4 == 1;
      taps->is_scheduled = true;
      if (i % 4 == 3) {
        taps->is_controlled = true;
        if (prompt_len > 1) add_segment(0, maker.program(Latch::kNone));
        add_segment(prompt_len - 1, maker.controlled());
      } else if (taps->needs_whole_prompt) {
        add_segment(0, maker.program(Latch::kFilled, maker.random_point()));
        add_segment(prompt_len, maker.program(Latch::kGenerated));
      } else {
        add_segment(0, maker.program(Latch::kNone));
      }
      // Latches are filled by the whole prompt; other programs change where they like.
      const bool changes = !taps->needs_whole_prompt && !taps->is_controlled;
      if (changes && i % 2 == 0) {
        if (prompt_len > 2) {
          add_segment(1 + maker.below(prompt_len - 1), maker.program(Latch::kNone));
        }
        add_segment(prompt_len, maker.program(Latch::kNone));
        if (maker.below(2) == 0) taps->segments.push_back({prompt_len + 3, {}, nullptr});
      }
      if (changes && i % 3 == 2) {
        const int32_t end_token = maker.below(160);
        // Likely, since steps are not repeated while there are thoughts.
        asks[i].sampling.logit_bias.emplace_back(end_token, i % 2 == 0 ? 4.0f : 8.0f);
        tap::TapSegment segment{0, {++content, 7}, nullptr};
        segment.program = std::make_shared<const tap::Program>(maker.program(Latch::kNone));
        taps->thoughts = tap::Thoughts{
            .begin_token = maker.below(160), .end_token = end_token, .open = true, .segments = {}};
        taps->thoughts->segments.push_back(segment);
      }
    }
    if (i % 4 == 2 || i % 6 == 0) {
      taps->capture = sets[num_capturing++ % 2];
      if (i % 4 == 2) {
        taps->captured = {{0, tap::kNoEnd}};
      } else {
        taps->captured = {{prompt_len / 2, prompt_len}, {prompt_len + 2, prompt_len + 5}};
      }
    }
    if (!taps->segments.empty() || taps->capture != nullptr) asks[i].taps = taps;
  }
}

}  // namespace rudder::metamorphic
