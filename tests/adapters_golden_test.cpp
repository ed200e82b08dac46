// What the demo answers with LoRA adapters against transformers and peft in float32
// (tools/golden/adapters.py), through the executor; and that who has no adapter has the bits of a
// server without any.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/lora/peft_adapter.h"
#include "rudder/model/adapted_products.h"
#include "rudder/model/loader.h"
#include "rudder/weights/mapped_file.h"

namespace rudder {
namespace {

namespace json = boost::json;
using tensor::DType;

constexpr int32_t kBase = lora::kNoRow;
constexpr int32_t kTone = 0;
constexpr int32_t kVoice = 1;  // DoRA
constexpr int32_t kMood = 2;
constexpr int32_t kBlocks = 5;  // of a sequence
constexpr int32_t kTop = 4;

std::string path_of(const std::string& name) {
  return std::string(RUDDER_SOURCE_DIR) + "/" + name;
}

struct Case {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<std::vector<std::pair<int32_t, double>>> top;  // of each token, best first
};

std::vector<Case> read_cases(const char* name) {
  const std::string text =
      weights::read_text_file(path_of("tests/adapters/golden.json"), 1 << 22).value();
  const json::value golden = parse_json(text, "golden.json").value();
  std::vector<Case> cases;
  for (const json::value& told : golden.at(name).as_array()) {
    Case& one = cases.emplace_back();
    one.prompt = json::value_to<std::vector<int32_t>>(told.at("prompt"));
    one.tokens = json::value_to<std::vector<int32_t>>(told.at("tokens"));
    for (const json::value& step : told.at("top").as_array()) {
      auto& top = one.top.emplace_back();
      for (const json::value& pair : step.as_array()) {
        top.emplace_back(pair.at(0).to_number<int32_t>(), pair.at(1).to_number<double>());
      }
    }
  }
  return cases;
}

struct Shape {
  DType dtype = DType::kF32;
  int32_t ranks = 1;
  int32_t stages = 1;
  bool has_adapters = true;
};

struct Asked {
  std::vector<int32_t> prompt;
  int32_t adapter_row = kBase;
};
struct Answered {
  std::vector<int32_t> tokens;
  std::vector<step::TokenLogprobs> logprobs;
};

// The demo's executor, with three adapters in rows of the adapter table.
class Server {
 public:
  explicit Server(const Shape& shape) {
    const auto model = weights::Checkpoint::open_folder(path_of("models/demo")).value();
    exec::ExecSettings settings;
    settings.max_model_len = kBlocks * 16;
    settings.kv_cache_memory_bytes = 24 << 20;
    settings.parallel.ranks = shape.ranks;
    settings.parallel.stages = shape.stages;
    settings.lora.enable = shape.has_adapters;
    settings.lora.max_loras = 2;
    settings.lora.max_rank = 6;
    exec::Ranks ranks;
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      for (auto& comm : cpu::HostComm::make_group(shape.ranks)) {
        ranks.push_back(
            cpu::make_cpu_ops(
                {.dtype = shape.dtype, .num_threads = 1, .isa = {}, .comm = std::move(comm)})
                .value());
      }
    }
    auto loaded = exec::load_model(*model, std::move(ranks), settings,
                                   {.max_num_seqs = 12, .max_num_batched_tokens = 96}, {});
    EXPECT_TRUE(loaded) << loaded.error().to_string();
    executor_ = std::move(loaded->executor);
    const lora::Targets targets = model::adapter_targets(*model, loaded->spec).value();
    if (!shape.has_adapters) return;
    model_ = model;
    edits_.push_back({.adapter_row = kVoice, .adapter = read("voice", targets)});
    edits_.push_back({.adapter_row = kTone, .adapter = read("tone", targets)});
    edits_.push_back({.adapter_row = kMood, .adapter = read("mood", targets)});
  }

  // Puts the adapter of row kMood into row kTone.
  void overwrite_tone() { edits_.push_back({.adapter_row = kTone, .adapter = mood_}); }

  // All together, step by step, prompts in chunks of at most `chunk` tokens.
  std::vector<Answered> run(const std::vector<Asked>& asked, int32_t chunk, int32_t num_tokens) {
    ++generation_;
    std::vector<Answered> answers(asked.size());
    std::vector<int32_t> done(asked.size(), 0);  // tokens in KV
    for (bool is_first = true;; is_first = false) {
      step::StepPlan plan;
      plan.id = ++steps_;
      plan.adapter_edits = std::exchange(edits_, {});
      std::vector<size_t> of_seq;
      for (size_t i = 0; i < asked.size(); ++i) {
        std::vector<int32_t> all = asked[i].prompt;
        all.insert(all.end(), answers[i].tokens.begin(), answers[i].tokens.end());
        if (is_first) open(plan, i, std::ssize(all), std::ssize(all) + num_tokens);
        if (std::ssize(answers[i].tokens) == num_tokens) continue;
        const auto length = static_cast<int32_t>(all.size());
        const int32_t count = std::min(chunk, length - done[i]);
        step::SeqWork& work = plan.seqs.emplace_back();
        work.slot = slot_of(i);
        work.generation = generation_;
        work.kv_len = done[i];
        work.q_len = count;
        work.token_begin = static_cast<int32_t>(plan.tokens.size());
        work.adapter_row = asked[i].adapter_row;
        done[i] += count;
        const bool is_last = done[i] == length;
        work.logits = is_last ? step::LogitsWanted::kLast : step::LogitsWanted::kNone;
        plan.tokens.insert(plan.tokens.end(), all.begin() + work.kv_len,
                           all.begin() + work.kv_len + count);
        of_seq.push_back(i);
      }
      if (plan.seqs.empty()) return answers;
      const auto ticket =
          executor_->launch(std::make_shared<const step::StepPlan>(std::move(plan))).value();
      const step::StepResult result = executor_->collect(ticket).value();
      for (size_t seq = 0; seq < of_seq.size(); ++seq) {
        Answered& answer = answers[of_seq[seq]];
        const step::SeqResult& got = result.seqs[seq];
        answer.tokens.insert(answer.tokens.end(), got.tokens.begin(), got.tokens.end());
        answer.logprobs.insert(answer.logprobs.end(), got.logprobs.begin(), got.logprobs.end());
      }
    }
  }

 private:
  std::shared_ptr<const lora::Adapter> read(const char* name, const lora::Targets& targets) {
    const auto read = lora::read_peft_folder(
        path_of(std::string("tests/adapters/") + name), targets, {.max_rank = 6, .hash_secret = {}},
        [this](const lora::Target& target) { return model::base_tensors(*model_, target); });
    EXPECT_TRUE(read) << read.error().to_string();
    return mood_ = read->adapter;  // the last one
  }
  static step::SlotId slot_of(size_t i) { return step::SlotId(static_cast<int32_t>(i)); }

  void open(step::StepPlan& plan, size_t i, int64_t prompt_len, int64_t max_len) {
    step::SlotEdit& edit = plan.slots.emplace_back();
    edit.slot = slot_of(i);
    edit.generation = generation_;
    edit.sampling.temperature = 0;
    edit.sampling.num_logprobs = kTop;
    edit.prompt_len = static_cast<int32_t>(prompt_len);
    edit.max_len = static_cast<int32_t>(max_len) + 1;
    const int32_t groups = executor_->capacity().kv_groups.size();
    edit.blocks.resize(static_cast<size_t>(groups));
    auto next = static_cast<int32_t>(i) * groups * kBlocks;
    for (auto& blocks : edit.blocks) {
      for (int32_t b = 0; b < kBlocks; ++b) blocks.push_back(next++);
    }
  }

  std::unique_ptr<step::Executor> executor_;
  std::shared_ptr<const weights::Checkpoint> model_;
  std::vector<step::AdapterEdit> edits_;
  std::shared_ptr<const lora::Adapter> mood_;
  uint32_t generation_ = 0;
  step::StepId steps_ = 0;
};

void expect_golden(const Answered& got, const Case& expected, const std::string& what) {
  EXPECT_EQ(got.tokens, expected.tokens) << what;
  for (size_t i = 0; i < got.logprobs.size() && i < expected.top.size(); ++i) {
    const auto& top = got.logprobs[i].top;
    ASSERT_EQ(top.size(), expected.top[i].size()) << what;
    for (size_t j = 0; j < top.size(); ++j) {
      EXPECT_EQ(top[j].first, expected.top[i][j].first) << what << ", token " << i;
      EXPECT_NEAR(top[j].second, expected.top[i][j].second, 1e-4) << what << ", token " << i;
    }
  }
}

void expect_bits(const Answered& got, const Answered& expected, const std::string& what) {
  EXPECT_EQ(got.tokens, expected.tokens) << what;
  ASSERT_EQ(got.logprobs.size(), expected.logprobs.size()) << what;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].logprob, expected.logprobs[i].logprob) << what << ", token " << i;
    EXPECT_EQ(got.logprobs[i].top, expected.logprobs[i].top) << what << ", token " << i;
  }
}

std::vector<Asked> asked_of(const std::vector<Case>& cases, int32_t row) {
  std::vector<Asked> asked;
  for (const Case& one : cases) asked.push_back({one.prompt, row});
  return asked;
}

void expect_all_golden(Server& server, int32_t chunk, const std::string& what) {
  std::vector<Case> cases = read_cases("base");
  std::vector<Asked> asked = asked_of(cases, kBase);
  for (const auto& [name, row] :
       {std::pair("tone", kTone), std::pair("mood", kMood), std::pair("voice", kVoice)}) {
    const std::vector<Case> more = read_cases(name);
    const std::vector<Asked> asks = asked_of(more, row);
    cases.insert(cases.end(), more.begin(), more.end() - 1);
    asked.insert(asked.end(), asks.begin(), asks.end() - 1);
  }
  const std::vector<Answered> got =
      server.run(asked, chunk, static_cast<int32_t>(cases.front().tokens.size()));
  for (size_t i = 0; i < cases.size(); ++i) {
    expect_golden(got[i], cases[i], what + ", sequence " + std::to_string(i));
  }
}

TEST(AdaptersGolden, AnswersAreThoseOfPeftBesideOthers) {
  Server server({});
  expect_all_golden(server, 96, "whole prompts");
  expect_all_golden(server, 3, "in chunks");
}

TEST(AdaptersGolden, OnRanksAndStages) {
  Server ranks({.ranks = 2});
  expect_all_golden(ranks, 5, "two ranks");
  Server stages({.stages = 2});
  expect_all_golden(stages, 5, "two stages");
}

// adapter.A1, adapter.A2
TEST(AdaptersGolden, WhoHasNoneHasTheBitsOfAServerWithout) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Server without({.dtype = dtype, .has_adapters = false});
    Server with({.dtype = dtype});
    const std::vector<Case> cases = read_cases("base");
    const std::vector<Answered> plain = without.run(asked_of(cases, kBase), 96, 13);
    std::vector<Asked> mixed = asked_of(cases, kBase);
    for (const int32_t row : {kTone, kMood, kTone}) mixed.push_back({cases[1].prompt, row});
    const std::vector<Answered> beside = with.run(mixed, 96, 13);
    const std::vector<Answered> alone = with.run(asked_of(cases, kBase), 96, 13);
    const std::vector<Answered> cut = with.run(mixed, 2, 13);
    for (size_t i = 0; i < plain.size(); ++i) {
      expect_bits(beside[i], plain[i], "beside adapters");
      expect_bits(alone[i], plain[i], "alone");
      expect_bits(cut[i], plain[i], "in chunks beside adapters");
    }
    const std::vector<Answered> tone = with.run({{cases[1].prompt, kTone}}, 96, 13);
    expect_bits(beside[cases.size()], tone[0], "an adapter beside others");
    expect_bits(cut[cases.size() + 2], tone[0], "an adapter in chunks");
    EXPECT_NE(tone[0].logprobs[0].logprob, plain[1].logprobs[0].logprob);
  }
}

// adapter.A8
TEST(AdaptersGolden, ARowThatIsWrittenAgainHasTheNewAdapterAlone) {
  Server server({});
  const std::vector<Case> mood = read_cases("mood");
  server.run(asked_of(read_cases("tone"), kTone), 96, 3);
  server.overwrite_tone();
  const std::vector<Answered> got = server.run(asked_of(mood, kTone), 96, 21);
  for (size_t i = 0; i < mood.size(); ++i) expect_golden(got[i], mood[i], "overwritten");
}

}  // namespace
}  // namespace rudder
