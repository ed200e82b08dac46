#include "rudder/exec/rank_executor.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {

Result<std::unique_ptr<RankExecutor>> RankExecutor::start(Model model,
                                                          const step::Capacity& capacity,
                                                          const Options& options) {
  RUDDER_CHECK(capacity.num_slots > 0 && capacity.num_blocks > 0 && capacity.block_size > 0 &&
               capacity.max_tokens_per_step > 0 && capacity.max_seq_len > 0 &&
               capacity.max_in_flight > 0);
  RUDDER_CHECK(capacity.vocab_size == model.spec.vocab);
  std::unique_ptr<RankExecutor> executor(new RankExecutor(std::move(model), capacity));
  RUDDER_TRY_VOID(executor->prepare(options));
  executor->worker_ = std::thread([raw = executor.get()] { raw->work(); });
  return executor;
}

RankExecutor::RankExecutor(Model model, const step::Capacity& capacity)
    : capacity_(capacity),
      model_(std::move(model)),
      slots_(capacity),
      places_(static_cast<size_t>(capacity.max_in_flight)),
      launched_(places_.size()),
      enqueued_(places_.size()),
      launched_ids_(places_.size()) {}

RankExecutor::~RankExecutor() {
  stopping_ = true;
  launched_.close();
  enqueued_.close();
  if (worker_.joinable()) worker_.join();
  // What is enqueued still uses the model. After a fault there is nothing to wait for.
  const std::unique_ptr<ops::Event> done = model_.ops->make_event();
  model_.ops->record(*done);
  static_cast<void>(done->wait());
}

Result<void> RankExecutor::prepare(const Options& options) {
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
  RUDDER_TRY(buffers_, StepBuffers::make(*model_.ops, capacity_));
  for (Place& place : places_) place.done = model_.ops->make_event();
  if (!model_.ops->has_graphs() || options.enforce_eager) return {};
  RUDDER_TRY(graphs_, GraphCache::capture({*model_.ops, *decoder_, *buffers_}, capacity_,
                                          options.capture_progress));
  return {};
}

Result<step::Ticket> RankExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  RUDDER_CHECK(plan != nullptr && plan->id > last_launched_);
  RUDDER_CHECK(in_flight_ < capacity_.max_in_flight, "{} steps in flight", in_flight_);
  if (fault_) return tl::unexpected<Error>(*fault_);
  const step::Ticket ticket{plan->id};
  last_launched_ = plan->id;
  launched_ids_[num_launched_++ % places_.size()] = plan->id;
  ++in_flight_;
  RUDDER_CHECK(launched_.try_push(std::move(plan)));
  return ticket;
}

Result<step::StepResult> RankExecutor::collect(step::Ticket ticket) {
  RUDDER_CHECK(in_flight_ > 0, "nothing is in flight");
  const std::optional<size_t> index = enqueued_.pop();
  RUDDER_CHECK(index && places_[*index].result.id == ticket.id,
               "step {} is not the oldest in flight", ticket.id);
  --in_flight_;
  Place& place = places_[*index];
  const bool was_done = place.done->done();
  Result<void> ran = place.enqueued;
  if (ran) ran = place.done->wait();
  if (!ran) {
    fault_ = ran.error();
    return tl::unexpected<Error>(ran.error());
  }
  step::StepResult result = std::move(place.result);
  read_sampled(*index, result);
  // A step begins when the one before it ends; when it ended is not known if it was before now.
  const int64_t end_us = was_done ? place.enqueued_us : clock_.now_us();
  result.device_us = end_us - std::max(place.start_us, last_end_us_);
  last_end_us_ = end_us;
  return result;
}

bool RankExecutor::ready(step::Ticket ticket) {
  if (last_enqueued_.load() < ticket.id) return false;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (launched_ids_[i] == ticket.id) return places_[i].done->done();
  }
  return true;  // collected
}

void RankExecutor::work() {
  for (size_t index = 0; auto plan = launched_.pop(); index = (index + 1) % places_.size()) {
    if (stopping_) return;
    enqueue(**plan, index);
    const step::StepId id = (*plan)->id;
    plan->reset();  // the plan's memory is the engine's again before it sees the result
    if (!enqueued_.push(index)) return;
    last_enqueued_ = id;
  }
}

void RankExecutor::enqueue(const step::StepPlan& plan, size_t index) {
  Place& place = places_[index];
  place.start_us = clock_.now_us();
  pack_step(plan, capacity_, slots_, packed_);
  place.result.id = plan.id;
  place.result.seqs.assign(plan.seqs.size(), {});
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    place.result.seqs[i].slot = plan.seqs[i].slot;
    place.result.seqs[i].generation = plan.seqs[i].generation;
  }
  place.sampled_seq = packed_.sampled_seq;
  place.num_logprobs.clear();
  for (const ops::SampleRow& row : packed_.sample_rows) {
    place.num_logprobs.push_back(row.num_logprobs);
  }
  place.enqueued = enqueue_ops(index);
  place.enqueued_us = clock_.now_us();
}

Result<void> RankExecutor::enqueue_ops(size_t index) {
  const int64_t num_sampled = packed_.num_sampled();
  const bool is_captured = graphs_ != nullptr && graphs_->pad(packed_);
  places_[index].result.from_graph = is_captured;
  RUDDER_TRY(DeviceStep step, buffers_->begin(packed_, index));
  if (is_captured) {
    graphs_->replay(packed_, step);
  } else if (packed_.num_tokens() > 0) {
    step.sample.logits = decoder_->forward(step.forward);
    if (num_sampled > 0) model_.ops->sample(step.sample);
  }
  if (num_sampled > 0) buffers_->fetch(num_sampled, packed_.any_logprobs, index);
  model_.ops->record(*places_[index].done);
  return {};
}

namespace {

step::RowEnd row_end(ops::SampleEnd end) {
  switch (end) {
    case ops::SampleEnd::kStopId:
      return step::RowEnd::kStopId;
    case ops::SampleEnd::kLength:
      return step::RowEnd::kLength;
    case ops::SampleEnd::kNumerical:
      return step::RowEnd::kNumerical;
    case ops::SampleEnd::kNone:
    case ops::SampleEnd::kMasked:
      return step::RowEnd::kNone;
  }
  RUDDER_CHECK(false, "end {}", static_cast<int32_t>(end));
}

}  // namespace

void RankExecutor::read_sampled(size_t index, step::StepResult& result) const {
  const Place& place = places_[index];
  const ops::SampledToken* sampled = buffers_->sampled(index);
  const ops::TopLogprob* top = buffers_->top(index);
  for (size_t i = 0; i < place.sampled_seq.size(); ++i) {
    const ops::SampledToken& row = sampled[i];
    step::SeqResult& seq = result.seqs[static_cast<size_t>(place.sampled_seq[i])];
    seq.end = row_end(row.end);
    seq.masked = row.end == ops::SampleEnd::kMasked;
    if (row.token < 0) continue;
    RUDDER_CHECK(row.token < capacity_.vocab_size, "sampled token {}", row.token);
    seq.tokens.assign(1, row.token);
    const int32_t num_logprobs = place.num_logprobs[i];
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
