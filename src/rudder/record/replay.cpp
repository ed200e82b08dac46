#include "rudder/record/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <deque>
#include <memory>
#include <utility>
#include <variant>

#include "rudder/base/token_mask.h"

namespace rudder::record {
namespace {

// What the executor must have, by name.
Result<void> check_capacity(const step::Capacity& recorded, const step::Capacity& own) {
  const auto check = [](const char* name, bool fits, int64_t wanted, int64_t found) {
    if (fits) return Result<void>();
    return Result<void>(fail(ErrorCode::kInvalidArgument,
                             fmt::format("the recording has {}, the executor {}", wanted, found),
                             name));
  };
  const auto same = [&](const char* name, int64_t wanted, int64_t found) {
    return check(name, wanted == found, wanted, found);
  };
  const auto at_least = [&](const char* name, int64_t wanted, int64_t found) {
    return check(name, wanted <= found, wanted, found);
  };
  RUDDER_TRY_VOID(same("block_size", recorded.block_size, own.block_size));
  RUDDER_TRY_VOID(same("kv_groups", recorded.kv_groups.size(), own.kv_groups.size()));
  for (size_t g = 0; g < static_cast<size_t>(own.kv_groups.size()); ++g) {
    RUDDER_TRY_VOID(
        same("kv_groups.window", recorded.kv_groups[g].window, own.kv_groups[g].window));
  }
  RUDDER_TRY_VOID(same("vocab_size", recorded.vocab_size, own.vocab_size));
  RUDDER_TRY_VOID(at_least("num_slots", recorded.num_slots, own.num_slots));
  RUDDER_TRY_VOID(at_least("num_blocks", recorded.num_blocks, own.num_blocks));
  RUDDER_TRY_VOID(
      at_least("max_tokens_per_step", recorded.max_tokens_per_step, own.max_tokens_per_step));
  RUDDER_TRY_VOID(at_least("max_seq_len", recorded.max_seq_len, own.max_seq_len));
  RUDDER_TRY_VOID(at_least("max_in_flight", recorded.max_in_flight, own.max_in_flight));
  RUDDER_TRY_VOID(at_least("max_repeat", recorded.max_repeat, own.max_repeat));
  RUDDER_TRY_VOID(at_least("max_draft", recorded.drafts.max_draft, own.drafts.max_draft));
  if (recorded.drafts.keeps_guesses) {  // drafts are what it guesses
    RUDDER_TRY_VOID(same("keeps_guesses", 1, own.drafts.keeps_guesses ? 1 : 0));
    RUDDER_TRY_VOID(same("look_up.min_n", recorded.drafts.look_up.min_n, own.drafts.look_up.min_n));
    RUDDER_TRY_VOID(same("look_up.max_n", recorded.drafts.look_up.max_n, own.drafts.look_up.max_n));
  }
  const bool has_host_trees =
      recorded.drafts.takes_trees && !recorded.drafts.guesses && recorded.drafts.max_draft > 0;
  const bool has_trees = !recorded.drafts.guess_tree.empty() || has_host_trees;
  RUDDER_TRY_VOID(at_least("takes_trees", has_trees ? 1 : 0, own.drafts.takes_trees ? 1 : 0));
  RUDDER_TRY_VOID(at_least("taps.num_rows", recorded.taps.num_rows, own.taps.num_rows));
  RUDDER_TRY_VOID(at_least("taps.num_ops", recorded.taps.num_ops, own.taps.num_ops));
  RUDDER_TRY_VOID(at_least("taps.num_floats", recorded.taps.num_floats, own.taps.num_floats));
  RUDDER_TRY_VOID(at_least("taps.max_features", recorded.taps.max_features, own.taps.max_features));
  RUDDER_TRY_VOID(
      at_least("taps.num_capture_sets", recorded.taps.num_capture_sets, own.taps.num_capture_sets));
  return at_least("taps.capture_elements", recorded.taps.capture_elements,
                  own.taps.capture_elements);
}

std::string difference(const step::SeqResult& recorded, const step::SeqResult& own) {
  if (recorded.tokens != own.tokens) {
    return fmt::format("tokens [{}] were recorded, [{}] came now", fmt::join(recorded.tokens, ", "),
                       fmt::join(own.tokens, ", "));
  }
  if (recorded.masked != own.masked) {
    return fmt::format("the sequence was {}masked, now it is {}", recorded.masked ? "" : "not ",
                       own.masked ? "masked" : "not");
  }
  if (recorded.end != own.end) {
    return fmt::format("the sequence ended by reason {}, now by {}", static_cast<int>(recorded.end),
                       static_cast<int>(own.end));
  }
  return {};
}

class Replay {
 public:
  // `recorded`: of the executor that was recorded.
  Replay(const step::Capacity& recorded, step::Executor& executor, ReplayReport& report)
      : executor_(executor),
        guesses_alike_(executor.capacity().drafts.guesses &&
                       recorded.drafts.guesses_from_rows ==
                           executor.capacity().drafts.guesses_from_rows &&
                       recorded.drafts.keeps_guesses == executor.capacity().drafts.keeps_guesses &&
                       recorded.drafts.look_up == executor.capacity().drafts.look_up &&
                       recorded.drafts.guess_tree == executor.capacity().drafts.guess_tree),
        report_(report) {}

  Result<void> operator()(step::StepPlan plan) {
    if (plan.id <= last_launched_ || awaits_masks() ||
        std::ssize(in_flight_) >= executor_.capacity().max_in_flight) {
      return out_of_order("launched", plan.id);
    }
    last_launched_ = plan.id;
    if (!guesses_alike_) {  // tokens do not hang on them
      for (step::SeqWork& work : plan.seqs) work.guess = {};
    }
    in_flight_.push_back({plan.id, plan.repeat, plan.num_masks()});
    ++report_.num_steps;
    RUDDER_TRY_VOID(executor_.launch(std::make_shared<const step::StepPlan>(std::move(plan))));
    return {};
  }

  Result<void> operator()(const SuppliedMasks& supplied) {
    const size_t words = mask_words(executor_.capacity().vocab_size);
    if (!awaits_masks() || supplied.step != last_launched_ ||
        supplied.masks.size() != words * static_cast<size_t>(in_flight_.back().num_masks)) {
      return out_of_order("supplied with masks", supplied.step);
    }
    in_flight_.back().num_masks = 0;
    return executor_.supply({supplied.step}, supplied.masks);
  }

  Result<void> operator()(const step::StepResult& recorded) {
    if (in_flight_.empty() || in_flight_.front().id != recorded.id ||
        in_flight_.front().num_masks > 0) {
      return out_of_order("collected", recorded.id);
    }
    if (--in_flight_.front().left == 0) in_flight_.pop_front();
    RUDDER_TRY(const step::StepResult own, executor_.collect({recorded.id}));
    if (own.seqs.size() != recorded.seqs.size()) return out_of_order("collected", recorded.id);
    ++report_.num_iterations;
    for (size_t seq = 0; seq < own.seqs.size(); ++seq) compare(recorded, own, seq);
    return {};
  }

 private:
  struct Launched {
    step::StepId id = 0;
    int32_t left = 1;  // iterations
    int32_t num_masks = 0;
  };

  bool awaits_masks() const { return !in_flight_.empty() && in_flight_.back().num_masks > 0; }

  void compare(const step::StepResult& recorded, const step::StepResult& own, size_t seq) {
    report_.num_tokens += std::ssize(recorded.seqs[seq].tokens);
    std::string what = difference(recorded.seqs[seq], own.seqs[seq]);
    if (what.empty()) return;
    if (report_.num_different++ > 0) return;
    report_.first = {recorded.id, recorded.iteration, static_cast<int32_t>(seq), std::move(what)};
  }

  static tl::unexpected<Error> out_of_order(const char* what, step::StepId step) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("step {} of the recording is {} where no engine does that", step, what),
                "recording");
  }

  step::Executor& executor_;
  const bool guesses_alike_;
  ReplayReport& report_;
  step::StepId last_launched_ = 0;
  std::deque<Launched> in_flight_;
};

}  // namespace

Result<void> replay(RecordingReader& recording, step::Executor& executor, ReplayReport* report) {
  RUDDER_TRY_VOID(check_capacity(recording.header().capacity, executor.capacity()));
  Replay run(recording.header().capacity, executor, *report);
  while (true) {
    RUDDER_TRY(std::optional<Record> record, recording.next());
    if (!record) return {};
    RUDDER_TRY_VOID(std::visit(run, std::move(*record)));
  }
}

}  // namespace rudder::record
