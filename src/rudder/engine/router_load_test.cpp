// Engines of a model, simulated by the tokens that they compute a step, with long and short
// requests placed among them: by the router, and by what it is compared with.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "rudder/engine/router.h"

namespace rudder::engine {
namespace {

constexpr size_t kEngines = 4;
constexpr int64_t kStepTokens = 512;  // that an engine computes a step
constexpr int kSteps = 4000;

struct Ask {
  int32_t prompt = 0;
  int32_t answer = 0;
};

struct Running {
  Ask ask;
  int64_t prompt_left = 0;
  int64_t answer_left = 0;
  std::shared_ptr<LoadCharge> charge;
};

// Prompts are computed in the order in which they came, with what running answers leave of a step.
class SimulatedEngine {
 public:
  void take(const Ask& ask, std::shared_ptr<LoadCharge> charge) {
    running_.push_back({ask, ask.prompt, ask.answer, std::move(charge)});
  }

  void step() {
    int64_t budget = kStepTokens;
    std::vector<Running*> sampled;
    for (Running& one : running_) {
      if (one.prompt_left == 0 && budget-- > 0) sampled.push_back(&one);
    }
    for (Running& one : running_) {
      if (one.prompt_left == 0 || budget <= 0) continue;
      const int64_t chunk = std::min(budget, one.prompt_left);
      budget -= chunk;
      one.prompt_left -= chunk;
      if (one.prompt_left == 0) sampled.push_back(&one);
    }
    for (Running* one : sampled) {
      Event event;
      event.tokens.resize(1);
      if (--one->answer_left == 0) event.finish = FinishReason::kLength;
      if (one->charge != nullptr) one->charge->note(event);
    }
    running_.remove_if([](const Running& one) { return one.answer_left == 0; });
  }

  int64_t requests() const { return std::ssize(running_); }
  int64_t work() const {
    int64_t sum = 0;
    for (const Running& one : running_) sum += one.prompt_left + one.answer_left;
    return sum;
  }
  // Prompts of open requests, and what they have generated.
  int64_t held() const {
    int64_t sum = 0;
    for (const Running& one : running_) {
      sum += one.ask.prompt + one.ask.answer - one.answer_left;
    }
    return sum;
  }

 private:
  std::list<Running> running_;
};

using Engines = std::array<SimulatedEngine, kEngines>;
using Placer = std::function<void(Engines& engines, const Ask& ask)>;

// Of ten requests one has a long prompt, two have long answers. Four fifths of what engines
// compute.
std::vector<std::pair<int, Ask>> arrivals() {
  std::mt19937 rng(7);
  const auto draw = [&](int32_t least, int32_t most) {
    return least + static_cast<int32_t>(rng() % static_cast<uint32_t>(most - least + 1));
  };
  std::vector<std::pair<int, Ask>> all;
  for (int step = 0; step < kSteps; ++step) {
    if (draw(1, 100) > 60) continue;
    const int32_t kind = draw(1, 10);
    Ask ask{.prompt = draw(50, 400), .answer = draw(5, 60)};
    if (kind == 1) ask = {.prompt = draw(12'000, 32'000), .answer = draw(5, 60)};
    if (kind == 2 || kind == 3) ask = {.prompt = draw(50, 400), .answer = draw(200, 400)};
    all.emplace_back(step, ask);
  }
  return all;
}

// The most that any engine has to do, summed over steps, and the highest of all steps.
struct Load {
  int64_t sum_of_most = 0;
  int64_t highest = 0;
};

Load run(const Placer& place) {
  const std::vector<std::pair<int, Ask>> asks = arrivals();
  Engines engines;
  Load load;
  size_t next = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (; next < asks.size() && asks[next].first == step; ++next)
      place(engines, asks[next].second);
    int64_t most = 0;
    for (SimulatedEngine& engine : engines) {
      most = std::max(most, engine.work());
      engine.step();
    }
    load.sum_of_most += most;
    load.highest = std::max(load.highest, most);
  }
  return load;
}

Placer least(const std::function<int64_t(const SimulatedEngine&)>& cost) {
  return [cost, turn = size_t{0}](Engines& engines, const Ask& ask) mutable {
    std::vector<ReplicaLoad> loads;
    for (const SimulatedEngine& engine : engines) loads.push_back({.open = cost(engine)});
    const size_t chosen = choose_replica(loads, turn++);
    engines[chosen].take(ask, nullptr);
  };
}

Placer by_router(Router& router) {
  return [&router](Engines& engines, const Ask& ask) {
    RequestParams params;
    params.prompt.resize(static_cast<size_t>(ask.prompt));
    params.max_tokens = ask.answer;
    Router::Placement placement = router.place(params, std::vector<bool>(kEngines, true));
    engines[placement.replica].take(ask, std::move(placement.charge));
  };
}

TEST(RouterLoad, TheMostThatAnEngineHasToDoFalls) {
  const Load by_count = run(least([](const SimulatedEngine& engine) { return engine.requests(); }));
  const Load by_held = run(least([](const SimulatedEngine& engine) { return engine.held(); }));
  Router router({.hash_key = {1, 2}, .model_identity = "m", .block_size = 16}, step::KvGroups(),
                std::array<cache::BlockWatcher*, kEngines>{});
  const Load by_work = run(by_router(router));
  const auto told = [](const char* name, const Load& load) {
    return ::testing::Message() << name << ": most to do " << load.sum_of_most / kSteps
                                << " tokens on average, at most " << load.highest << "; ";
  };
  SCOPED_TRACE(told("by requests", by_count));
  SCOPED_TRACE(told("by tokens held", by_held));
  SCOPED_TRACE(told("by tokens to do", by_work));
  EXPECT_LT(by_work.sum_of_most, by_count.sum_of_most * 3 / 4);
  EXPECT_LT(by_work.highest, by_count.highest);
  EXPECT_LT(by_work.sum_of_most, by_held.sum_of_most);
  EXPECT_LE(by_work.highest, by_held.highest);
  for (size_t i = 0; i < kEngines; ++i) EXPECT_GE(router.load(i), 0);
}

}  // namespace
}  // namespace rudder::engine
