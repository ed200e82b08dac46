// Mixtures of experts whose routers are steered, against transformers in float32
// (tools/golden/expert_steering.py), from the request's JSON through the executor: tokens, their
// log-probabilities, and which experts each token went through. The routers are of three kinds:
// softmax then the largest, the largest then softmax, sigmoids in groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/steer/config.h"
#include "rudder/steer/parse.h"
#include "rudder/weights/checkpoint.h"
#include "rudder/weights/mapped_file.h"

namespace rudder {
namespace {

namespace json = boost::json;

constexpr int32_t kBlocks = 6;  // of a sequence
constexpr int32_t kTop = 4;

std::string path_of(const std::string& name) {
  return std::string(RUDDER_SOURCE_DIR) + "/" + name;
}

json::array read_cases() {
  const std::string text =
      weights::read_text_file(path_of("tests/steering/experts.json"), 1 << 20).value();
  return parse_json(text, "experts.json").value().as_array();
}

class NoNames final : public steer::Names {
 public:
  std::shared_ptr<const steer::Config> find(std::string_view /*name*/) const override {
    return nullptr;
  }
  std::shared_ptr<const features::DictionarySet> find_dictionary(
      std::string_view /*name*/) const override {
    return nullptr;
  }
};

struct Shape {
  int32_t ranks = 1;
  int32_t stages = 1;
  int32_t chunk = 96;  // tokens of a prompt in a step
};

// One steered sequence, its chosen experts captured, beside one that is not.
class SteeredRun {
 public:
  SteeredRun(const json::value& told, const Shape& shape) : told_(told), shape_(shape) {
    const std::string name(told.at("checkpoint").as_string());
    const auto model = weights::Checkpoint::open_folder(path_of("tests/golden/" + name)).value();
    exec::ExecSettings settings;
    settings.max_model_len = kBlocks * 16;
    settings.kv_cache_memory_bytes = 16 << 20;
    settings.parallel.ranks = shape.ranks;
    settings.parallel.stages = shape.stages;
    settings.enable_steering = true;
    settings.steering_memory_mb = 1;
    settings.capture_memory_mb = 4;
    exec::Ranks devices;
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      for (auto& comm : cpu::HostComm::make_group(shape.ranks)) {
        devices.push_back(cpu::make_cpu_ops({.dtype = tensor::DType::kF32,
                                             .num_threads = 1,
                                             .isa = {},
                                             .comm = std::move(comm)})
                              .value());
      }
    }
    auto loaded = exec::load_model(*model, std::move(devices), settings,
                                   {.max_num_seqs = 4, .max_num_batched_tokens = 128}, {});
    EXPECT_TRUE(loaded) << loaded.error().to_string();
    executor_ = std::move(loaded->executor);
    prompt_ = json::value_to<std::vector<int32_t>>(told.at("prompt"));
  }

  void check() {
    const auto program = steering();
    const auto set = captured_points();
    std::vector<int32_t> done(2, 0);
    std::vector<std::vector<int32_t>> tokens(2);
    const size_t wanted = told_.at("tokens").as_array().size();
    for (step::StepId id = 1; tokens[0].size() < wanted || tokens[1].size() < wanted; ++id) {
      step::StepPlan plan;
      plan.id = id;
      if (id == 1) {
        plan.tap_edits.push_back(
            {.tap_row = 1, .first_op = 0, .first_float = 0, .program = program});
        plan.capture_edits.push_back({0, set});
        for (int32_t i = 0; i < 2; ++i) open(plan, i);
      }
      std::vector<size_t> of_seq;
      for (size_t i = 0; i < 2; ++i) {
        if (tokens[i].size() == wanted) continue;
        std::vector<int32_t> all = prompt_;
        all.insert(all.end(), tokens[i].begin(), tokens[i].end());
        const int32_t count = std::min(shape_.chunk, static_cast<int32_t>(all.size()) - done[i]);
        step::SeqWork& work = plan.seqs.emplace_back();
        work.slot = step::SlotId(static_cast<int32_t>(i));
        work.generation = 1;
        work.kv_len = done[i];
        work.q_len = count;
        work.token_begin = static_cast<int32_t>(plan.tokens.size());
        if (i == 0) {
          work.tap_row = 1;
          work.capture_set = 0;
          work.captures = {{0, count}};
        }
        plan.tokens.insert(plan.tokens.end(), all.begin() + done[i], all.begin() + done[i] + count);
        done[i] += count;
        const bool is_last = done[i] == std::ssize(all);
        work.logits = is_last ? step::LogitsWanted::kLast : step::LogitsWanted::kNone;
        of_seq.push_back(i);
      }
      const auto ticket =
          executor_->launch(std::make_shared<const step::StepPlan>(std::move(plan))).value();
      const step::StepResult result = executor_->collect(ticket).value();
      for (size_t seq = 0; seq < of_seq.size(); ++seq) {
        const step::SeqResult& got = result.seqs[seq];
        const size_t i = of_seq[seq];
        if (i == 0 && !got.tokens.empty()) check_token(tokens[0].size(), got);
        tokens[i].insert(tokens[i].end(), got.tokens.begin(), got.tokens.end());
      }
      keep_experts(result, *set);
    }
    check_experts(*set);
  }

 private:
  std::shared_ptr<const tap::Program> steering() {
    const step::Capacity capacity = executor_->capacity();
    auto model = std::make_shared<steer::Model>();
    model->geometry = capacity.geometry;
    model->limits = capacity.taps;
    const json::object body = {{"steering", told_.at("steering")}};
    const auto parsed = steer::parse_steering(body, *model, NoNames());
    EXPECT_TRUE(parsed) << parsed.error().to_string();
    const auto config = steer::Config::build(model, parsed->ops);
    EXPECT_TRUE(config) << config.error().to_string();
    return (*config)->program(1).program;
  }

  std::shared_ptr<const tap::CaptureSet> captured_points() {
    auto set = std::make_shared<tap::CaptureSet>();
    for (const auto& [layer, experts] : told_.at("experts").as_object()) {
      set->points.push_back({{std::stoi(layer), tap::Site::kRoutedExperts}, false});
    }
    std::ranges::sort(set->points, {}, [](const auto& at) { return at.point.index(); });
    return set;
  }

  void open(step::StepPlan& plan, int32_t i) {
    step::SlotEdit& edit = plan.slots.emplace_back();
    edit.slot = step::SlotId(i);
    edit.generation = 1;
    edit.sampling.temperature = 0;
    edit.sampling.num_logprobs = kTop;
    edit.prompt_len = static_cast<int32_t>(prompt_.size());
    edit.max_len = kBlocks * 16;
    const int32_t groups = executor_->capacity().kv_groups.size();
    edit.blocks.resize(static_cast<size_t>(groups));
    int32_t next = i * groups * kBlocks;
    for (auto& blocks : edit.blocks) {
      for (int32_t b = 0; b < kBlocks; ++b) blocks.push_back(next++);
    }
  }

  void check_token(size_t at, const step::SeqResult& got) {
    EXPECT_EQ(got.tokens.front(), told_.at("tokens").at(at).to_number<int32_t>()) << at;
    const auto& top = got.logprobs.front().top;
    const json::array& expected = told_.at("top").at(at).as_array();
    for (size_t j = 0; j < expected.size(); ++j) {
      EXPECT_EQ(top[j].first, expected[j].at(0).to_number<int32_t>()) << at;
      EXPECT_NEAR(top[j].second, expected[j].at(1).to_number<double>(), 1e-4) << at;
    }
  }

  void keep_experts(const step::StepResult& result, const tap::CaptureSet& set) {
    if (result.captured == nullptr) return;
    const tap::Geometry geometry = executor_->capacity().geometry;
    std::vector<int64_t> offsets;
    tap::record_elements(set, geometry, &offsets);
    for (const tap::CapturedToken& token : result.captured->tokens) {
      for (size_t p = 0; p < offsets.size(); ++p) {
        std::vector<int16_t> row(static_cast<size_t>(geometry.width(set.points[p].point)));
        const auto* const data = static_cast<const std::byte*>(result.captured->data);
        const int64_t bytes = static_cast<int64_t>(tensor::dtype_bytes(result.captured->dtype));
        std::memcpy(row.data(), data + (token.begin + offsets[p]) * bytes,
                    row.size() * sizeof(int16_t));
        experts_.resize(offsets.size());
        experts_[p].push_back(std::move(row));
      }
    }
  }

  void check_experts(const tap::CaptureSet& set) {
    ASSERT_EQ(experts_.size(), set.points.size());
    for (size_t p = 0; p < set.points.size(); ++p) {
      const std::string layer = std::to_string(set.points[p].point.layer);
      const json::array& expected = told_.at("experts").at(layer).as_array();
      ASSERT_EQ(experts_[p].size(), expected.size()) << layer;
      // Of routers with groups transformers leaves the order open (topk with sorted=False).
      const auto at = static_cast<size_t>(set.points[p].point.layer);
      const bool is_ordered = !executor_->capacity().geometry.routing[at].by_scores;
      for (size_t t = 0; t < expected.size(); ++t) {
        std::vector<int16_t> got = experts_[p][t];
        auto wanted = json::value_to<std::vector<int16_t>>(expected[t]);
        if (!is_ordered) {
          std::ranges::sort(got);
          std::ranges::sort(wanted);
        }
        EXPECT_EQ(got, wanted) << "layer " << layer << ", token " << t;
      }
    }
  }

  const json::value& told_;
  const Shape shape_;
  std::unique_ptr<step::Executor> executor_;
  std::vector<int32_t> prompt_;
  std::vector<std::vector<std::vector<int16_t>>> experts_;  // by point, token
};

TEST(ExpertsGolden, AreChosenAsTransformersChoosesThem) {
  for (const json::value& told : read_cases()) {
    SCOPED_TRACE(told.at("checkpoint").as_string());
    SteeredRun(told, {}).check();
  }
}

TEST(ExpertsGolden, LikewiseInChunks) {
  for (const json::value& told : read_cases()) {
    SCOPED_TRACE(told.at("checkpoint").as_string());
    SteeredRun(told, {.chunk = 13}).check();
  }
}

TEST(ExpertsGolden, LikewiseOnTwoRanksAndInTwoStages) {
  for (const json::value& told : read_cases()) {
    SCOPED_TRACE(told.at("checkpoint").as_string());
    SteeredRun(told, {.ranks = 2}).check();
    SteeredRun(told, {.stages = 2}).check();
  }
}

}  // namespace
}  // namespace rudder
