#include "rudder/testing/load_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::testing {

LoadModel::LoadModel(const step::Capacity& capacity, const sched::SchedSettings& settings, Law law)
    : law_(std::move(law)), scheduler_(std::make_unique<sched::Scheduler>(capacity, settings)) {
  while (const auto plan = scheduler_->plan_trial()) {
    last_step_ = plan->id;
    step::StepResult result{.id = plan->id, .seqs = {}};
    result.device_us = static_cast<int64_t>(law_(*plan));
    scheduler_->commit_trial(result);
  }
}

void LoadModel::add(sched::NewSequence sequence) {
  Served& added = served_[sequence.id];
  added.num_tokens = sequence.max_len - static_cast<int32_t>(sequence.prompt.size());
  added.arrival_us = now_us_;
  added.token_us.reserve(static_cast<size_t>(added.num_tokens));
  const Result<void> taken = scheduler_->add(std::move(sequence));
  RUDDER_CHECK(taken.has_value(), "a sequence of the load is refused");
}

bool LoadModel::turn() {
  while (launch()) {
  }
  if (in_flight_.empty()) return false;
  collect();
  return true;
}

bool LoadModel::launch() {
  const std::shared_ptr<const step::StepPlan> plan = scheduler_->plan();
  if (plan == nullptr) return false;
  RUDDER_CHECK(plan->repeat == 1, "the load has no repeated steps");
  last_step_ = plan->id;
  for (const sched::SequenceId id : scheduler_->first_planned()) {
    served_.at(id).first_step = plan->id;
  }
  const auto device_us = static_cast<int64_t>(law_(*plan));
  const int64_t begin_us = in_flight_.empty() ? now_us_ : in_flight_.back().end_us;
  in_flight_.push_back({plan, device_us, begin_us + device_us});
  return true;
}

void LoadModel::collect() {
  const Launched step = std::move(in_flight_.front());
  in_flight_.pop_front();
  now_us_ = step.end_us;
  for (const step::SlotEdit& edit : step.plan->slots) max_len_[edit.slot.value] = edit.max_len;
  step::StepResult result{.id = step.plan->id, .seqs = {}, .device_us = step.device_us};
  for (const step::SeqWork& work : step.plan->seqs) {
    step::SeqResult& sequence = result.seqs.emplace_back();
    sequence.slot = work.slot;
    sequence.generation = work.generation;
    if (work.logits == step::LogitsWanted::kNone) continue;
    const int32_t len = work.kv_len + work.q_len;
    sequence.tokens = {static_cast<int32_t>((static_cast<uint32_t>(len) * 2654435761U) >> 8)};
    if (len + 1 == max_len_.at(work.slot.value)) sequence.end = step::SeqEnd::kLength;
  }
  outputs_.clear();
  scheduler_->commit(result, &outputs_);
  for (const sched::SequenceOutput& output : outputs_) {
    Served& served = served_.at(output.id);
    if (served.token_us.empty()) served.token_step = result.id;
    served.token_us.resize(served.token_us.size() + output.tokens.size(), now_us_);
  }
}

namespace {

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

sched::NewSequence loop_sequence(uint64_t id, const ClosedLoop& loop) {
  sched::NewSequence sequence;
  sequence.id = sched::SequenceId(id);
  sequence.max_len = loop.prompt_len + loop.output_len;
  for (int32_t i = 0; i < loop.prompt_len; ++i) {
    const uint64_t own = i < loop.shared_len ? 0 : id;
    sequence.prompt.push_back(static_cast<int32_t>((own * 7919 + static_cast<uint64_t>(i)) % 1000));
  }
  return sequence;
}

// A loop while it runs.
struct Clients {
  const ClosedLoop* loop = nullptr;
  int32_t num_left = 0;              // requests to be made yet
  std::vector<int64_t> due_us = {};  // of clients that pause, when they ask
  std::vector<uint64_t> open = {};   // requests
  std::vector<double> gaps = {};     // between tokens
  std::vector<double> first = {};    // to the first one
  int64_t num_tokens = 0;

  bool done() const { return num_left == 0 && open.empty(); }
  void ask(LoadModel& model) {
    std::erase_if(due_us, [&](int64_t due) {
      if (num_left == 0) return true;
      if (due > model.now_us()) return false;
      --num_left;
      const uint64_t id = model.all().size() + 1;
      model.add(loop_sequence(id, *loop));
      open.push_back(id);
      return true;
    });
  }
  void collect(const LoadModel& model) {
    std::erase_if(open, [&](uint64_t id) {
      const LoadModel::Served& served = model.served(id);
      if (!served.done()) return false;
      first.push_back(static_cast<double>(served.token_us.front() - served.arrival_us) * 1e-3);
      for (size_t t = 1; t < served.token_us.size(); ++t) {
        gaps.push_back(static_cast<double>(served.token_us[t] - served.token_us[t - 1]) * 1e-3);
      }
      num_tokens += served.num_tokens;
      due_us.push_back(model.now_us() + loop->pause_us);
      return true;
    });
  }
  LoadFigures figures(double seconds) {
    LoadFigures figures;
    figures.ttft_mean =
        std::accumulate(first.begin(), first.end(), 0.0) / static_cast<double>(first.size());
    figures.ttft_p50 = quantile(first, 0.5);
    figures.ttft_p99 = quantile(first, 0.99);
    figures.itl_p50 = quantile(gaps, 0.5);
    figures.itl_p99 = quantile(gaps, 0.99);
    figures.tokens_per_s = static_cast<double>(num_tokens) / seconds;
    return figures;
  }
};

}  // namespace

std::vector<LoadFigures> serve(LoadModel& model, std::span<const ClosedLoop> loops) {
  const int64_t begin_us = model.now_us();
  std::vector<Clients> all;
  for (const ClosedLoop& loop : loops) {
    all.push_back({.loop = &loop,
                   .num_left = loop.requests > 0 ? loop.requests : 1 << 30,
                   .due_us = std::vector<int64_t>(static_cast<size_t>(loop.clients), begin_us)});
  }
  const auto is_over = [](const Clients& clients) {
    return clients.loop->requests == 0 || clients.done();
  };
  do {
    int64_t next_us = std::numeric_limits<int64_t>::max();
    for (Clients& clients : all) {
      clients.ask(model);
      for (const int64_t due_us : clients.due_us) next_us = std::min(next_us, due_us);
    }
    if (!model.turn()) model.wait_until(next_us);
    for (Clients& clients : all) clients.collect(model);
  } while (!std::ranges::all_of(all, is_over));
  const double seconds = static_cast<double>(model.now_us() - begin_us) * 1e-6;
  std::vector<LoadFigures> figures;
  for (Clients& clients : all) figures.push_back(clients.figures(seconds));
  model.run();
  return figures;
}

LoadFigures serve(LoadModel& model, const ClosedLoop& loop) {
  return serve(model, std::span(&loop, 1)).front();
}

}  // namespace rudder::testing
