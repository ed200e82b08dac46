#include "rudder/exec/rank_executor.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {

Result<std::unique_ptr<step::Executor>> RankExecutor::start(Model model,
                                                            const step::Capacity& capacity) {
  RUDDER_CHECK(capacity.num_slots > 0 && capacity.num_blocks > 0 && capacity.block_size > 0 &&
               capacity.max_tokens_per_step > 0 && capacity.max_seq_len > 0 &&
               capacity.max_in_flight > 0);
  RUDDER_CHECK(capacity.vocab_size == model.spec.vocab);
  std::unique_ptr<RankExecutor> executor(new RankExecutor(std::move(model), capacity));
  RUDDER_TRY_VOID(executor->allocate());
  executor->worker_ = std::thread([raw = executor.get()] { raw->work(); });
  return executor;
}

RankExecutor::RankExecutor(Model model, const step::Capacity& capacity)
    : capacity_(capacity),
      model_(std::move(model)),
      slots_(capacity),
      launched_(static_cast<size_t>(capacity.max_in_flight)),
      finished_(static_cast<size_t>(capacity.max_in_flight)) {}

RankExecutor::~RankExecutor() {
  stopping_ = true;
  launched_.close();
  finished_.close();
  if (worker_.joinable()) worker_.join();
}

Result<void> RankExecutor::allocate() {
  std::vector<ops::KvLayer> kv;
  for (const model::LayerSpec& layer : model_.spec.layers) {
    const model::AttentionSpec& a = layer.attention;
    RUDDER_TRY(
        const ops::View storage,
        model_.ops->allocate(model_.ops->kv_dtype(), {capacity_.num_blocks, 2, a.num_kv_heads,
                                                      int64_t{capacity_.block_size} * a.head_dim}));
    kv.push_back({storage, capacity_.block_size, a.num_kv_heads, a.head_dim});
  }
  RUDDER_TRY(decoder_, model::Decoder::make(model_.spec, model_.weights, kv, *model_.ops,
                                            {.max_tokens = capacity_.max_tokens_per_step,
                                             .max_logits_rows = capacity_.num_slots,
                                             .max_seq_len = capacity_.max_seq_len}));
  return {};
}

Result<step::Ticket> RankExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  RUDDER_CHECK(plan != nullptr && plan->id > last_launched_);
  RUDDER_CHECK(in_flight_ < capacity_.max_in_flight, "{} steps in flight", in_flight_);
  const step::Ticket ticket{plan->id};
  last_launched_ = plan->id;
  ++in_flight_;
  RUDDER_CHECK(launched_.try_push(std::move(plan)));
  return ticket;
}

Result<step::StepResult> RankExecutor::collect(step::Ticket ticket) {
  RUDDER_CHECK(in_flight_ > 0, "nothing is in flight");
  std::optional<step::StepResult> result = finished_.pop();
  RUDDER_CHECK(result && result->id == ticket.id, "step {} is not the oldest in flight", ticket.id);
  --in_flight_;
  return std::move(*result);
}

bool RankExecutor::ready(step::Ticket ticket) {
  return last_finished_.load() >= ticket.id;
}

void RankExecutor::work() {
  while (auto plan = launched_.pop()) {
    if (stopping_) return;
    step::StepResult result = run(**plan);
    plan->reset();  // the plan's memory is the engine's again before it sees the result
    const step::StepId id = result.id;
    if (!finished_.push(std::move(result))) return;
    last_finished_ = id;
  }
}

step::StepResult RankExecutor::run(const step::StepPlan& plan) {
  const int64_t start_us = clock_.now_us();
  pack_step(plan, capacity_, slots_, packed_);
  step::StepResult result;
  result.id = plan.id;
  result.seqs.resize(plan.seqs.size());
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    result.seqs[i].slot = plan.seqs[i].slot;
    result.seqs[i].generation = plan.seqs[i].generation;
    result.seqs[i].masked = packed_.is_masked[i];
  }
  if (!packed_.ids.empty()) {
    const ops::View logits = decoder_->forward(packed_.batch());
    if (!packed_.sampled.empty()) {
      sample(logits);
      write_sampled(result);
    }
  }
  result.device_us = clock_.now_us() - start_us;
  return result;
}

void RankExecutor::sample(const ops::View& logits) {
  const size_t num_rows = packed_.sampled.size();
  sample_rows_.clear();
  size_t num_top = 0;
  for (const PackedStep::SampledRow& row : packed_.sampled) {
    sample_rows_.push_back(slots_.sample_row(*row.slot, row.position));
    num_top += static_cast<size_t>(std::max(0, sample_rows_.back().num_logprobs));
  }
  sampled_tokens_.resize(num_rows);
  sampled_logprobs_.resize(num_rows);
  top_logprobs_.resize(num_top);
  std::span<std::pair<int32_t, float>> top = top_logprobs_;
  for (size_t i = 0; i < num_rows; ++i) {
    const auto count = static_cast<size_t>(std::max(0, sample_rows_[i].num_logprobs));
    sampled_logprobs_[i].top = top.first(count);
    top = top.subspan(count);
  }
  model_.ops->sample({.logits = logits,
                      .rows = sample_rows_,
                      .tokens = sampled_tokens_,
                      .logprobs = sampled_logprobs_});
}

void RankExecutor::write_sampled(step::StepResult& result) {
  for (size_t i = 0; i < packed_.sampled.size(); ++i) {
    const PackedStep::SampledRow& row = packed_.sampled[i];
    step::SeqResult& seq = result.seqs[row.seq];
    seq.end = slots_.accept(*row.slot, sampled_tokens_[i], row.position);
    if (seq.end == step::RowEnd::kNumerical) continue;
    seq.tokens.assign(1, sampled_tokens_[i]);
    if (sample_rows_[i].num_logprobs < 0) continue;
    const ops::SampleLogprobs& logprobs = sampled_logprobs_[i];
    seq.logprobs.push_back({.logprob = logprobs.logprob,
                            .rank = logprobs.rank,
                            .top = {logprobs.top.begin(), logprobs.top.end()}});
  }
}

}  // namespace rudder::exec
