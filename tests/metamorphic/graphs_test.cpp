// Which steps get a graph, which graph a step runs, and that it is one for this step. No model runs
// here: a graph is what was captured last of a step, and a replay says what it would do wrong.
#include "rudder/exec/graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/graph_shapes.h"
#include "rudder/exec/tap_state.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/testing/tape_ops.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::exec {
namespace {

constexpr step::Capacity kCapacity = {.num_slots = 12,
                                      .num_blocks = 16,
                                      .block_size = 16,
                                      .max_tokens_per_step = 512,
                                      .max_seq_len = 256,
                                      .vocab_size = 50,
                                      .max_in_flight = 1,
                                      .drafts = {.max_draft = 11, .takes_trees = true}};
constexpr int32_t kAll = 40;  // layers of the wide graphs of NarrowGraphsTest

// When graphs are captured.
class NarrowGraphsTest : public ::testing::Test {
 protected:
  static GraphKey key(int32_t kind, std::initializer_list<int32_t> layers) {
    GraphKey key = {.shape = {.kind = StepKind::kPrompt, .tokens = 8, .seqs = 8, .max_q_len = kind},
                    .tapped = tap::PassageSet()};
    for (const int32_t layer : layers) key.tapped->add({layer, tap::Site::kResidPost});
    return key;
  }

  Graphs graphs(const NarrowRules& rules) {
    GraphBinding binding;
    binding.key_of = [this](PackedStep&) { return key_; };
    binding.widened = [](const GraphKey& key) {
      return GraphKey{key.shape, tap::PassageSet::all(tap::kLayerEnd, kAll - 1)};
    };
    binding.launch = [this](const GraphKey& key, GraphEnd, DeviceStep&) -> GraphRest {
      const bool is_wide = key.tapped->size() == kAll;
      if (!is_wide) ++num_captured_;
      return [this, graph = is_wide ? 0 : num_captured_](const DeviceStep&) {
        replayed_ = graph;
        return ops::View{};
      };
    };
    return {*ops_, kCapacity, std::move(binding), rules};
  }

  // What a step runs: 0 is a wide graph or no graph, -1 a narrow one that is captured now.
  int step(Graphs& graphs, const GraphKey& key) {
    key_ = key;
    PackedStep packed;
    exec::Setup setup;
    if (!graphs.pad(packed, setup)) return 0;
    const int before = num_captured_;
    EXPECT_TRUE(graphs.capture({}, setup));
    graphs.replay({});
    return num_captured_ > before ? -1 : replayed_;
  }

  int num_captured_ = 0;

 private:
  const std::unique_ptr<ops::Ops> ops_ = testing::make_tape_ops(cpu::make_reference_ops());
  GraphKey key_;
  int replayed_ = 0;
};

TEST_F(NarrowGraphsTest, AStepHasToComeBack) {
  Graphs narrow = graphs({.least_steps = 3, .spacing = 0});
  EXPECT_EQ(step(narrow, key(1, {4})), 0);
  EXPECT_EQ(step(narrow, key(1, {4})), 0);
  EXPECT_EQ(step(narrow, key(2, {4})), 0);  // another kind
  EXPECT_EQ(step(narrow, key(1, {5})), 0);  // another layer
  EXPECT_EQ(step(narrow, key(1, {4})), -1);
  EXPECT_EQ(step(narrow, key(1, {4})), 1);
  EXPECT_EQ(step(narrow, key(2, {4})), 0);
}

TEST_F(NarrowGraphsTest, CapturesLieApart) {
  Graphs narrow = graphs({.least_steps = 1, .spacing = 4});
  EXPECT_EQ(step(narrow, key(1, {0})), 0);  // the first of its kind runs op by op
  EXPECT_EQ(step(narrow, key(1, {0})), -1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(narrow, key(1, {9})), 0);
  EXPECT_EQ(step(narrow, key(1, {9})), -1);
  EXPECT_EQ(step(narrow, key(1, {9})), 2);
}

TEST_F(NarrowGraphsTest, AStepRunsTheNarrowestThatTapsWhatItUses) {
  Graphs narrow = graphs({.least_steps = 1, .spacing = 0});
  EXPECT_EQ(step(narrow, key(1, {0})), 0);
  EXPECT_EQ(step(narrow, key(1, {0, 1, 2, 3, 4, 5, 6, 7})), -1);
  EXPECT_EQ(step(narrow, key(1, {1, 2, 3, 4, 5, 6, 7})), 1);  // little narrower
  EXPECT_EQ(step(narrow, key(1, {2, 3})), -1);
  EXPECT_EQ(step(narrow, key(1, {2, 3})), 2);
  EXPECT_EQ(step(narrow, key(1, {})), -1);
  EXPECT_EQ(step(narrow, key(1, {})), 3);
  EXPECT_EQ(step(narrow, key(1, {2, 8})), -1);  // in none of them
  EXPECT_EQ(step(narrow, key(1, {2, 8})), 4);
}

TEST_F(NarrowGraphsTest, WhatTapsNearlyAllRunsAWideGraph) {
  Graphs narrow = graphs({.least_steps = 1, .spacing = 0});
  GraphKey most = key(1, {});
  most.tapped = tap::PassageSet::all(tap::kLayerEnd, 30);
  EXPECT_EQ(most.tapped->size(), 31);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(narrow, most), 0);
}

// Many sets that take turns: no more graphs than may be, and each of them captured seldom.
TEST_F(NarrowGraphsTest, ThoseUsedLongestAgoGo) {
  Graphs narrow = graphs(
      {.least_steps = 2, .spacing = 0, .most_graphs = 2, .idle_steps = 0, .most_counted = 8});
  for (const int32_t layer : {0, 1}) {
    EXPECT_EQ(step(narrow, key(1, {layer})), 0);
    EXPECT_EQ(step(narrow, key(1, {layer})), -1);
  }
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
  EXPECT_EQ(step(narrow, key(1, {2})), 0);
  EXPECT_EQ(step(narrow, key(1, {2})), -1);  // in the place of layer 1's
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
  EXPECT_EQ(step(narrow, key(1, {1})), 0);  // which has to come back as often as at first
  EXPECT_EQ(step(narrow, key(1, {1})), -1);
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
  EXPECT_EQ(step(narrow, key(1, {2})), 0);
  // Of more sets than are counted none comes back in time.
  for (int turn = 0; turn < 4; ++turn) {
    for (int32_t layer = 10; layer < 22; ++layer) EXPECT_EQ(step(narrow, key(1, {layer})), 0);
  }
  EXPECT_EQ(num_captured_, 4);
}

TEST_F(NarrowGraphsTest, NoneGoesThatIsStillRun) {
  Graphs narrow = graphs({.least_steps = 1, .spacing = 0, .most_graphs = 2, .idle_steps = 5});
  EXPECT_EQ(step(narrow, key(1, {0})), 0);
  EXPECT_EQ(step(narrow, key(1, {0})), -1);
  EXPECT_EQ(step(narrow, key(1, {1})), -1);
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_EQ(step(narrow, key(1, {0})), 1);
    EXPECT_EQ(step(narrow, key(1, {1})), 2);
    EXPECT_EQ(step(narrow, key(1, {2})), 0);
  }
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(step(narrow, key(1, {0})), 1);
    EXPECT_EQ(step(narrow, key(1, {2})), 0);
  }
  EXPECT_EQ(step(narrow, key(1, {2})), -1);  // in the place of layer 1's
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
}

bool is_same(const ops::View& a, const ops::View& b) {
  return a.data == b.data && (a.empty() || a.shape == b.shape);
}

// What is wrong with a graph captured of one step that runs another; "" if nothing is.
std::string wrong_of(const DeviceStep& captured, const DeviceStep& step, GraphEnd end,
                     const GraphKey& key) {
  const model::ForwardBatch& a = captured.forward;
  const model::ForwardBatch& b = step.forward;
  if (!is_same(a.ids, b.ids) || !is_same(a.positions, b.positions)) return "tokens";
  if (!is_same(a.kv_slot, b.kv_slot)) return "KV slots";
  if (!is_same(a.attention.q_begin, b.attention.q_begin)) return "sequences";
  if (!is_same(a.attention.kv_len, b.attention.kv_len)) return "lengths";
  if (!is_same(a.attention.table_row, b.attention.table_row)) return "rows of the block table";
  if (!is_same(a.attention.ancestors, b.attention.ancestors)) return "trees";
  if (!is_same(a.goes_on_rows, b.goes_on_rows)) return "rows that guesses go on from";
  if (!is_same(a.adapters.groups, b.adapters.groups)) return "rows of adapters";
  if (a.adapters.groups.shape != b.adapters.groups.shape) return "groups of adapters";
  if (a.attention.max_q_len < b.attention.max_q_len) return "longest sequence";
  if (a.attention.max_kv_len < b.attention.max_kv_len) return "longest KV";
  if ((a.tap_table == nullptr) != (b.tap_table == nullptr)) return "a table of taps";
  if (b.tap_table != nullptr) {
    if (!is_same(a.taps.row, b.taps.row)) return "taps";
    if (!a.tapped->contains(*b.tapped)) return "tapped macro-ops";
    if (a.taps.only_adds && !b.taps.only_adds) return "adds alone";
    if (!std::ranges::equal(a.encodes, b.encodes)) return "encodes";
  }
  if (key.shape.kind == StepKind::kPrompt) return end == GraphEnd::kLogits ? "" : "end";
  if (!is_same(a.logits_rows, b.logits_rows)) return "rows of logits";
  if (!is_same(step.sample.rows, captured.sample.rows)) return "sampled rows";
  if (!is_same(a.feedback_rows, b.feedback_rows)) return "feedback rows";
  if (key.shape.kind == StepKind::kPass) return "";
  if (step.sample.any_masked) return end == GraphEnd::kLogits ? "" : "masks";
  const bool is_plain =
      step.sample.all_greedy && !step.sample.any_logprobs && !step.sample.any_changed;
  return end == GraphEnd::kSampled || (end == GraphEnd::kGreedy && is_plain) ? "" : "sampling";
}

// A field of a key, as one that a lookup would forget.
struct Field {
  std::string name;
  std::function<void(GraphKey& key, const GraphKey& other)> copy;  // from another key
};
const Field kFields[] = {
    {"tokens", [](GraphKey& key, const GraphKey& other) { key.shape.tokens = other.shape.tokens; }},
    {"seqs", [](GraphKey& key, const GraphKey& other) { key.shape.seqs = other.shape.seqs; }},
    {"rows", [](GraphKey& key, const GraphKey& other) { key.shape.rows = other.shape.rows; }},
    {"max_q_len",
     [](GraphKey& key, const GraphKey& other) { key.shape.max_q_len = other.shape.max_q_len; }},
    {"has_trees",
     [](GraphKey& key, const GraphKey& other) { key.shape.has_trees = other.shape.has_trees; }},
    {"goes_on",
     [](GraphKey& key, const GraphKey& other) { key.shape.goes_on = other.shape.goes_on; }},
    {"only_adds",
     [](GraphKey& key, const GraphKey& other) { key.shape.only_adds = other.shape.only_adds; }},
    {"adapts", [](GraphKey& key, const GraphKey& other) { key.shape.adapts = other.shape.adapts; }},
    {"one adapter",
     [](GraphKey& key, const GraphKey& other) { key.shape.one_adapter = other.shape.one_adapter; }},
    {"encodes",
     [](GraphKey& key, const GraphKey& other) { key.shape.encodes = other.shape.encodes; }},
    {"tapped", [](GraphKey& key, const GraphKey& other) { key.tapped = other.tapped; }},
};

// A field that is added to keys is added above. The kind of step alone tells none apart.
[[maybe_unused]] void name_fields(const GraphKey& key) {
  [[maybe_unused]] const auto& [shape, tapped] = key;
  [[maybe_unused]] const auto& [kind, tokens, seqs, rows, max_q_len, has_trees, goes_on, only_adds,
                                adapts, one_adapter, encodes] = shape;
}

// The one in which the keys differ; null: there are several.
const Field* only_difference(const GraphKey& a, const GraphKey& b) {
  const auto found = std::ranges::find_if(kFields, [&](const Field& field) {
    GraphKey same = a;
    field.copy(same, b);
    return same == b;
  });
  return found == std::end(kFields) ? nullptr : &*found;
}

// Which steps share a graph.
class GraphKeys : public ::testing::Test {
 protected:
  void SetUp() override {
    capacity_ = kCapacity;
    capacity_.geometry =
        model::tap_geometry(testing::tiny_spec(testing::TinyArch::kPreNorm), tensor::DType::kF32);
    capacity_.taps = {.num_rows = 4, .num_ops = 16, .num_floats = 1024, .max_features = 4};
    capacity_.adapters = {.num_rows = 2, .max_rank = 4};
    taps_ = TapState::make(*ops_, capacity_).value();
    buffers_ = StepBuffers::make(*ops_, capacity_, &taps_->table()).value();
    buffers_->set_adapter_scratch({.mid = ops_->allocate(tensor::DType::kF32, {16}).value(),
                                   .act = ops_->allocate(tensor::DType::kF32, {16}).value()});
    shapes_ = std::make_unique<StepShapes>(capacity_, ops::Rank{});
  }

  int32_t draw(int32_t count) {
    return static_cast<int32_t>(engine_() % static_cast<uint32_t>(count));
  }

  void add_sequence(int32_t q_len, bool samples_all, bool is_tree, PackedStep& packed) {
    for (int32_t i = 0; i < q_len; ++i) {
      packed.ids.push_back(draw(50));
      packed.positions.push_back(i);
      packed.kv_slot[0].push_back(-1);
      if (is_tree) packed.ancestors.resize(packed.ids.size(), uint64_t{1} << i | 1);
      if (!samples_all && i + 1 < q_len) continue;
      packed.logits_rows.push_back(static_cast<int32_t>(packed.ids.size()) - 1);
      ops::SampleRow row;
      row.slot = static_cast<int32_t>(packed.kv_len.size());
      packed.sample_rows.push_back(row);
    }
    packed.q_begin.push_back(static_cast<int32_t>(packed.ids.size()));
    packed.table_row.push_back(static_cast<int32_t>(packed.kv_len.size()));
    packed.kv_len.push_back(q_len);
    packed.max_kv_len = std::max(packed.max_kv_len, q_len);
    if (!is_tree) packed.max_q_len = std::max(packed.max_q_len, q_len);
  }

  void add_taps(PackedStep& packed) {
    PackedTaps& taps = packed.taps;
    taps.is_used = true;
    taps.only_adds = draw(2) == 0;
    constexpr tap::Site kSites[] = {tap::Site::kResidPost, tap::Site::kMlpAct, tap::Site::kAttnZ};
    taps.tapped.add({draw(3), kSites[draw(3)]});
    if (draw(2) == 0) taps.encodes = {draw(2)};
    for (std::vector<int32_t>* of :
         {&taps.row, &taps.since_prompt, &taps.capture_begin, &taps.token}) {
      of->assign(packed.ids.size(), 0);
    }
    taps.slot.assign(packed.ids.size(), 0);
    taps.capture_set.assign(packed.ids.size(), -1);
  }

  std::vector<PackedStep> drawn(StepKind kind, int count) {
    std::vector<PackedStep> steps;
    while (std::ssize(steps) < count) steps.push_back(drawn(kind));
    return steps;
  }
  PackedStep drawn(StepKind kind) {
    PackedStep packed;
    packed.kv_slot.resize(1);
    const bool has_tree = draw(3) == 0;
    const int32_t num_seqs = 1 + draw(4);
    const bool all_rows = kind == StepKind::kDecode || (kind == StepKind::kPass && draw(2) == 0);
    for (int32_t i = 0; i < num_seqs; ++i) {
      const bool is_long = kind == StepKind::kPrompt && i == 0;
      const int32_t q_len = is_long ? 65 + draw(120) : 1 + draw(draw(2) == 0 ? 12 : 4);
      add_sequence(q_len, all_rows, has_tree && i == 1, packed);
    }
    if (!packed.ancestors.empty()) packed.ancestors.resize(packed.ids.size(), 0);
    if (kind == StepKind::kPass) {
      if (draw(2) == 0) packed.guesses.goes_on_rows.assign(packed.ids.size(), 0);
      packed.guesses.feedback_rows.assign(packed.sample_rows.size(), 0);
    } else if (draw(2) == 0) {
      add_taps(packed);
    }
    if (kind != StepKind::kPass && draw(3) == 0) {
      const bool has_one = packed.ids.size() < 2 || draw(2) == 0;
      packed.taps.adapters = {.is_used = true, .has_one = has_one, .row = {}};
      packed.taps.adapters.row.assign(packed.ids.size(), 0);
    }
    return packed;
  }

  std::optional<GraphKey> key_of(StepKind kind, PackedStep& packed) const {
    return kind == StepKind::kPass ? pass_key(capacity_, packed) : shapes_->key_of(packed);
  }
  GraphKey widened(StepKind kind, const GraphKey& key) const {
    return kind == StepKind::kPass ? key : shapes_->widened(key);
  }
  std::optional<GraphKey> wide_key_of(StepKind kind, PackedStep& packed) const {
    std::optional<GraphKey> key = key_of(kind, packed);
    if (key) key = widened(kind, *key);
    return key;
  }

  // Of steps whose lookups forget the field (null: none): those that run from a wrong graph.
  struct Faults {
    int wrong = 0;
    int replayed = 0;
    std::string first;
  };
  Faults faults_of(StepKind kind, const Field* forgotten, std::span<const PackedStep> steps,
                   const NarrowRules& rules = {}) {
    Faults faults;
    std::vector<GraphKey> known;
    GraphBinding binding;
    binding.key_of = [&](PackedStep& packed) { return key_of(kind, packed); };
    binding.widened = [&](const GraphKey& key) {
      const GraphKey wide = widened(kind, key);
      if (forgotten == nullptr) return wide;
      for (const GraphKey& other : known) {
        GraphKey same = wide;
        forgotten->copy(same, other);
        if (same == other) return other;
      }
      return known.emplace_back(wide);
    };
    binding.launch = [&](const GraphKey& key, GraphEnd end, DeviceStep& captured) -> GraphRest {
      return [&faults, &key, &captured, end](const DeviceStep& step) {
        ++faults.replayed;
        const std::string wrong = wrong_of(captured, step, end, key);
        if (!wrong.empty() && faults.wrong++ == 0) faults.first = wrong;
        return ops::View{};
      };
    };
    Graphs graphs(*ops_, capacity_, binding, rules);
    for (PackedStep packed : steps) {
      exec::Setup setup;
      const bool is_replayed = graphs.pad(packed, setup);
      const DeviceStep step = buffers_->begin(packed, 0).value();
      if (!is_replayed) continue;
      EXPECT_TRUE(graphs.capture(step, setup));
      graphs.replay(step);
    }
    return faults;
  }

  const std::unique_ptr<ops::Ops> ops_ = testing::make_tape_ops(cpu::make_reference_ops());
  step::Capacity capacity_;
  std::unique_ptr<TapState> taps_;
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<StepShapes> shapes_;
  std::mt19937 engine_{23};
};

TEST_F(GraphKeys, AStepRunsFromAGraphOfItsOwnKey) {
  for (const StepKind kind : {StepKind::kDecode, StepKind::kPrompt, StepKind::kPass}) {
    const Faults faults = faults_of(kind, nullptr, drawn(kind, 700),
                                    {.least_steps = 2, .spacing = 3, .most_graphs = 4});
    EXPECT_EQ(faults.wrong, 0) << faults.first;
    EXPECT_GT(faults.replayed, 100);
  }
}

// Each field tells steps apart for which one graph would be wrong.
TEST_F(GraphKeys, ALookupThatForgetsAFieldIsCaught) {
  std::map<std::string, int> pairs;
  for (const StepKind kind : {StepKind::kDecode, StepKind::kPrompt, StepKind::kPass}) {
    const std::vector<PackedStep> steps = drawn(kind, 400);
    std::vector<std::optional<GraphKey>> keys;
    for (PackedStep step : steps) keys.push_back(wide_key_of(kind, step));
    for (size_t i = 0; i < steps.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!keys[i] || !keys[j] || keys[i] == keys[j]) continue;
        const Field* const field = only_difference(*keys[i], *keys[j]);
        if (field == nullptr || pairs[field->name] == 3) continue;
        ++pairs[field->name];
        const PackedStep& a = steps[i];
        const PackedStep& b = steps[j];
        const PackedStep both[] = {a, a, b, b, a, b, b, a};
        const PackedStep back[] = {b, b, a, a, b, a, a, b};
        EXPECT_EQ(faults_of(kind, nullptr, both).wrong, 0) << field->name;
        // A replay of what lies elsewhere ends the process.
        const auto is_caught = [&] {
          return faults_of(kind, field, both).wrong + faults_of(kind, field, back).wrong > 0;
        };
        EXPECT_EXIT(
            std::_Exit(is_caught() ? 1 : 0), [](int status) { return status != 0; }, "")
            << field->name;
      }
    }
  }
  for (const Field& field : kFields) EXPECT_GT(pairs[field.name], 0) << field.name;
}

}  // namespace
}  // namespace rudder::exec
