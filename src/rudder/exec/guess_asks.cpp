#include "rudder/exec/guess_asks.h"

#include <algorithm>

namespace rudder::exec {

void list_asks(const step::StepPlan& plan, const SlotTable& slots, std::vector<GuessAsk>& asks) {
  asks.clear();
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    const step::SeqWork& work = plan.seqs[i];
    if (work.guess.empty()) continue;
    asks.push_back({.seq = static_cast<int32_t>(i),
                    .id = work.slot,
                    .slot = &slots.slot(work.slot),
                    .begin = work.guess.begin,
                    .tokens = work.guess.tokens,
                    .num_guess = work.guess.num_guess,
                    .num_draft = work.num_draft});
  }
}

void name_rows(std::span<const int32_t> sampled_seq, std::span<GuessAsk> asks) {
  for (GuessAsk& ask : asks) {
    const auto row = std::ranges::lower_bound(sampled_seq, ask.seq);
    if (row == sampled_seq.end() || *row != ask.seq) continue;
    ask.logits_row = static_cast<int32_t>(row - sampled_seq.begin());
  }
}

void add_sampled(std::span<const int32_t> sampled_seq, const ops::SampledToken* sampled,
                 std::span<GuessAsk> asks) {
  size_t row = 0;
  for (GuessAsk& ask : asks) {
    while (row < sampled_seq.size() && sampled_seq[row] < ask.seq) ++row;
    if (ask.num_guess == 0) continue;
    bool has_ended = false;
    for (; row < sampled_seq.size() && sampled_seq[row] == ask.seq; ++row) {
      if (sampled[row].end == ops::SampleEnd::kRejected) continue;
      has_ended = has_ended || sampled[row].end != ops::SampleEnd::kNone;
      ask.tokens.push_back(sampled[row].token);
      ask.logits_row = static_cast<int32_t>(row);
    }
    // The last draft may be followed by one more token of the sequence.
    ask.num_guess = has_ended ? 0 : std::clamp(ask.slot->max_len - ask.end() - 1, 0, ask.num_guess);
    if (has_ended) ask.tokens.clear();
  }
}

}  // namespace rudder::exec
