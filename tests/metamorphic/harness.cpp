#include "metamorphic/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/isa.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/rank_executor.h"

namespace rudder::metamorphic {
namespace {

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().to_string());
  return std::move(*result);
}

}  // namespace

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = [] {
    std::vector<Backend> found = {{"reference", cpu::make_reference_ops}};
    const auto add = [&](cpu::Isa isa, tensor::DType dtype) {
      std::string name = fmt::format("{}_{}", cpu::isa_name(isa), tensor::dtype_name(dtype));
      std::replace(name.begin(), name.end(), '-', '_');
      found.push_back({name, [=] {
                         return value_of(
                             cpu::make_cpu_ops({.dtype = dtype, .num_threads = 2, .isa = isa}));
                       }});
    };
    // The sets between the first and the best differ in kernels, which the conformance suite
    // covers.
    const cpu::Isa best = cpu::available_isas().back();
    add(cpu::Isa::kPortable, tensor::DType::kBF16);
    if (best != cpu::Isa::kPortable) add(best, tensor::DType::kBF16);
    add(best, tensor::DType::kF32);
    return found;
  }();
  return all;
}

std::unique_ptr<step::Executor> tiny_executor(const Backend& backend, testing::TinyArch arch,
                                              const step::Capacity& capacity) {
  exec::RankExecutor::Model model;
  model.ops = backend.make();
  model.spec = testing::tiny_spec(arch);
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, 7));
  return value_of(exec::RankExecutor::start(std::move(model), capacity));
}

Outcome run(step::Executor& executor, const sched::SchedSettings& settings,
            const std::vector<Ask>& asks) {
  sched::Scheduler scheduler(executor.capacity(), settings);
  Outcome result;
  result.got.resize(asks.size());
  std::deque<step::Ticket> in_flight;
  std::vector<sched::SequenceOutput> outputs;
  size_t num_added = 0;
  for (int32_t round = 0; num_added < asks.size() || !scheduler.idle(); ++round) {
    for (size_t i = 0; i < asks.size(); ++i) {
      const Ask& ask = asks[i];
      if (ask.arrival != round) continue;
      ++num_added;
      const auto added = scheduler.add({.id = sched::SequenceId(i),
                                        .prompt = ask.prompt,
                                        .sampling = ask.sampling,
                                        .max_len = ask.max_len,
                                        .priority = 0,
                                        .cache_salt = ""});
      if (!added) throw std::runtime_error(added.error().to_string());
    }
    while (static_cast<int32_t>(in_flight.size()) < settings.max_in_flight) {
      auto plan = scheduler.plan();
      if (plan == nullptr) break;
      in_flight.push_back(value_of(executor.launch(std::move(plan))));
    }
    if (in_flight.empty()) continue;
    const step::StepResult step = value_of(executor.collect(in_flight.front()));
    in_flight.pop_front();
    for (const step::SeqResult& row : step.seqs) result.masked_rows += row.masked ? 1 : 0;
    outputs.clear();
    scheduler.commit(step, &outputs);
    for (const sched::SequenceOutput& output : outputs) {
      Got& got = result.got[output.id.value];
      got.tokens.insert(got.tokens.end(), output.tokens.begin(), output.tokens.end());
      for (const step::TokenLogprobs& l : output.logprobs) {
        got.logprobs.push_back(l.logprob);
        for (const auto& [token, logprob] : l.top) got.logprobs.push_back(logprob);
      }
      got.end = output.end;
      got.cached_tokens = std::max(got.cached_tokens, output.cached_tokens);
    }
    if (const auto whole = scheduler.check_integrity(); !whole) {
      throw std::runtime_error(whole.error().to_string());
    }
  }
  result.stats = scheduler.stats();
  return result;
}

}  // namespace rudder::metamorphic
