// DeviceExecutor::read_sampled: what an iteration has sampled and looked up, from the staging
// memory that it came to into the result of its step.
#include "rudder/base/check.h"
#include "rudder/exec/device_executor.h"

namespace rudder::exec {
namespace {

step::SeqEnd seq_end(ops::SampleEnd end) {
  switch (end) {
    case ops::SampleEnd::kStopId:
      return step::SeqEnd::kStopId;
    case ops::SampleEnd::kLength:
      return step::SeqEnd::kLength;
    case ops::SampleEnd::kNumerical:
      return step::SeqEnd::kNumerical;
    case ops::SampleEnd::kNone:
    case ops::SampleEnd::kMasked:
    case ops::SampleEnd::kRejected:
      return step::SeqEnd::kNone;
  }
  RUDDER_CHECK(false, "end {}", static_cast<int32_t>(end));
}

}  // namespace

void DeviceExecutor::read_sampled(const Enqueued& from, step::StepResult& result) const {
  const Flight& flight = flights_[from.flight];
  flight.guesses.read(*buffers_, from.flight, result);
  const ops::SampledToken* sampled = buffers_->sampled(from.flight, from.iteration);
  const ops::TopLogprob* top = buffers_->top(from.flight, from.iteration);
  for (size_t i = 0; i < flight.sampled_seq.size(); ++i) {
    const ops::SampledToken& row = sampled[i];
    step::SeqResult& seq = result.seqs[static_cast<size_t>(flight.sampled_seq[i])];
    if (row.end == ops::SampleEnd::kRejected) continue;
    seq.end = seq_end(row.end);
    seq.masked = row.end == ops::SampleEnd::kMasked;
    if (row.token < 0) continue;
    RUDDER_CHECK(row.token < capacity_.vocab_size, "sampled token {}", row.token);
    seq.tokens.push_back(row.token);
    const int32_t num_logprobs = flight.num_logprobs[i];
    if (num_logprobs < 0) continue;
    step::TokenLogprobs& logprobs =
        seq.logprobs.emplace_back(step::TokenLogprobs{row.logprob, row.rank, {}});
    const ops::TopLogprob* best = top + i * step::kMaxLogprobs;
    for (int32_t k = 0; k < num_logprobs && best[k].token >= 0; ++k) {
      logprobs.top.emplace_back(best[k].token, best[k].logprob);
    }
  }
}

}  // namespace rudder::exec
