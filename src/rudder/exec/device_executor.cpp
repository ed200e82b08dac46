#include "rudder/exec/device_executor.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/contain.h"
#include "rudder/base/token_mask.h"
#include "rudder/exec/device_tiers.h"
#include "rudder/exec/executor_decoder.h"
#include "rudder/exec/graph_shapes.h"
#include "rudder/exec/kept_rows.h"

namespace rudder::exec {
namespace {

// Host memory for captured rows, in rings: readers may be this far behind the device.
constexpr int64_t kPoolRings = 4;

void name_thread(const ops::Rank& rank, const model::Stage& stage) {
  const std::string name = stage.is_alone()  ? fmt::format("rudder-rank-{}", rank.index)
                           : rank.is_alone() ? fmt::format("rudder-stage-{}", stage.index)
                                             : fmt::format("rudder-{}.{}", stage.index, rank.index);
  pthread_setname_np(pthread_self(), name.c_str());
}

}  // namespace

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::start(Model model,
                                                              const step::Capacity& capacity,
                                                              const Options& options) {
  RUDDER_CHECK(capacity.num_slots > 0 && capacity.num_blocks > 0 && capacity.block_size > 0 &&
               capacity.max_tokens_per_step > 0 && capacity.max_seq_len > 0 &&
               capacity.max_in_flight > 0 && capacity.max_repeat > 0 &&
               capacity.drafts.max_draft >= 0);
  RUDDER_CHECK(capacity.drafts.max_draft < ops::kMaxChain, "{} drafts", capacity.drafts.max_draft);
  RUDDER_CHECK(!capacity.drafts.takes_trees ||
                   (model.ops->tree_ops() != nullptr && model::runs_trees(model.spec)),
               "{} takes no trees, or what it runs", model.ops->name());
  RUDDER_CHECK(capacity.drafts.guess_tree.empty() ||
               (capacity.drafts.takes_trees &&
                capacity.drafts.guess_tree.size() == capacity.drafts.max_draft));
  RUDDER_CHECK((capacity.drafts.guesses && model.spec.stage.is_last()) == (model.draft != nullptr));
  if (model.draft != nullptr) {
    RUDDER_CHECK(guesses_as(*model.draft, capacity.drafts), "the source guesses in another way");
    RUDDER_TRY_VOID(model.draft->check_device(*model.ops, model.spec.stage));
  }
  RUDDER_CHECK(capacity.vocab_size == model.spec.vocab);
  RUDDER_CHECK(capacity.adapters.empty() == (model.adapters == nullptr));
  RUDDER_CHECK(capacity.kv_groups == model.kv.groups, "the model's KV groups are others");
  std::unique_ptr<DeviceExecutor> executor(new DeviceExecutor(std::move(model), capacity));
  RUDDER_TRY_VOID(executor->prepare(options));
  if (options.held != nullptr) {
    *options.held = {.ops = executor->model_.ops.get(),
                     .weights = &executor->model_.weights,
                     .stage = executor->model_.spec.stage,
                     .sequences = {executor->kept_.states.pool()}};
    for (const ops::KvLayer& layer : executor->kept_.kv) {
      options.held->sequences.push_back(layer.storage);
      options.held->sequences.push_back(layer.token_scales);
    }
  }
  if (ops::Comm* const comm = ops::comm_of(*executor->model_.ops)) comm->open();
  executor->worker_ = std::thread([raw = executor.get()] { raw->work(); });
  return executor;
}

DeviceExecutor::DeviceExecutor(Model model, const step::Capacity& capacity)
    : capacity_(capacity),
      model_(std::move(model)),
      slots_(capacity),
      flights_(static_cast<size_t>(capacity.max_in_flight)),
      launched_(flights_.size()),
      supplied_(flights_.size()),
      enqueued_(flights_.size() * static_cast<size_t>(capacity.max_repeat)) {}

void DeviceExecutor::stop() {
  if (stopping_.exchange(true)) return;
  fail_others({ErrorCode::kCancelled, "the group has ended", ""});  // nobody waits for it
  launched_.close();
  supplied_.close();
  enqueued_.close();
  if (worker_.joinable()) worker_.join();
  // What is enqueued still uses the model. After a fault there is nothing to wait for.
  const std::unique_ptr<ops::Event> done = model_.ops->make_event();
  model_.ops->record(*done);
  static_cast<void>(done->wait());
  for (Flight& flight : flights_) {
    if (flight.captured != nullptr) static_cast<void>(flight.captured_out->wait());
  }
}

Result<void> DeviceExecutor::prepare(const Options& options) {
  RUDDER_TRY(KvMemory kv, make_kv(options.make_decoder, model_, capacity_));
  kept_.kv = std::move(kv.layers);
  RUDDER_TRY(kept_.states, StateMemory::make(*model_.ops, model_.spec, capacity_));
  RUDDER_TRY(kept_.records, start_tiers(*model_.ops, capacity_, model_.kv, kv.pool,
                                        kept_.states.pool(), options.record_folder));
  source_ = std::move(model_.draft);
  const RowsRead read = source_ == nullptr ? RowsRead() : source_->rows_read();
  RUDDER_TRY(const model::HiddenPool kept,
             make_hidden_pool(model_.spec, read, *model_.ops, capacity_));
  kept_.readers = {kept_.kv, kept.token_rows(), source_.get()};
  ops::View sampled_rows;
  if (read.sampled) {
    RUDDER_TRY(sampled_rows,
               model_.ops->allocate(model_.ops->act_dtype(),
                                    {max_logits_rows(capacity_), model_.spec.hidden}));
  }
  RUDDER_TRY(decoder_, make_decoder(options.make_decoder, model_, capacity_,
                                    {kept_.kv, kept, sampled_rows, kept_.states.layers()}));
  RUDDER_TRY_VOID(prepare_taps());
  RUDDER_TRY(buffers_, StepBuffers::make(*model_.ops, capacity_,
                                         taps_ == nullptr ? nullptr : &taps_->table()));
  if (model_.adapters != nullptr) buffers_->set_adapter_scratch(model_.adapters->scratch());
  if (source_ != nullptr) {
    RUDDER_TRY_VOID(source_->bind({.ops = *model_.ops,
                                   .capacity = capacity_,
                                   .spec = model_.spec,
                                   .weights = model_.weights,
                                   .kv = kept_.kv,
                                   .kept_rows = kept.rows,
                                   .sampled_rows = sampled_rows,
                                   .slots = buffers_->state(),
                                   .has_graphs = !options.enforce_eager}));
  }
  RUDDER_TRY(scorer_, Scorer::make(*model_.ops, *decoder_, capacity_));
  for (Flight& flight : flights_) {
    flight.iterations.resize(static_cast<size_t>(capacity_.max_repeat));
    for (Iteration& iteration : flight.iterations) iteration.done = model_.ops->make_event();
    flight.captured_out = model_.ops->make_event();
    flight.guesses.copied = model_.ops->make_event();
  }
  if (options.link != nullptr) {
    RUDDER_TRY(handover_, Handover::make({*model_.ops, *decoder_, *buffers_, taps_.get(), kept},
                                         model_.spec.stage, capacity_, options.link));
  }
  if (model_.ops->graph_ops() == nullptr || options.enforce_eager) return {};
  graphs_ = std::make_unique<Graphs>(
      *model_.ops, capacity_,
      bind_steps(*model_.ops, *decoder_, capacity_, kept_.readers, model_.spec.stage.is_last()),
      options.narrow_graphs);
  return graphs_->capture_at_start(*buffers_, options.capture_progress);
}

Result<void> DeviceExecutor::prepare_taps() {
  if (!capacity_.taps.steering() && !capacity_.taps.capture()) return {};
  RUDDER_TRY(taps_, TapState::make(*model_.ops, capacity_));
  if (!capacity_.taps.capture() || ops::rank_of(*model_.ops).index > 0) return {};
  if (!model_.spec.stage.is_last()) return {};
  const auto ring_bytes = static_cast<int64_t>(taps_->table().ring.bytes());
  RUDDER_TRY(pool_, CapturePool::make(*model_.ops, kPoolRings * ring_bytes));
  return {};
}

step::Capacity DeviceExecutor::capacity() const {
  step::Capacity capacity = capacity_;
  if (graphs_ != nullptr) capacity.prompt_step_multiple = kPromptStepMultiple;
  return capacity;
}

Result<step::Ticket> DeviceExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  RUDDER_CHECK(plan != nullptr && plan->id > last_launched_);
  RUDDER_CHECK(in_flight_.size() < flights_.size(), "{} steps in flight", in_flight_.size());
  RUDDER_CHECK(masks_awaited_ == 0, "step {} waits for its masks", last_launched_);
  const step::Ticket ticket{plan->id};
  last_launched_ = plan->id;
  ++num_launched_;
  in_flight_.push_back({plan->id, plan->repeat, is_nothing(*plan)});
  if (kept_.records != nullptr) kept_.records->begin(plan->record_copies);
  masks_awaited_ = model_.spec.stage.is_last() ? plan->num_masks() : 0;
  RUDDER_CHECK(launched_.try_push(std::move(plan)));
  return ticket;
}

Result<void> DeviceExecutor::supply(step::Ticket ticket, std::span<const uint32_t> masks) {
  RUDDER_CHECK(masks_awaited_ > 0 && ticket.id == last_launched_, "step {} waits for no masks",
               ticket.id);
  const size_t wanted = static_cast<size_t>(masks_awaited_) * mask_words(capacity_.vocab_size);
  RUDDER_CHECK(masks.size() == wanted, "{} words of masks, not {}", masks.size(), wanted);
  if (fault_) return tl::unexpected<Error>(*fault_);
  masks_awaited_ = 0;
  const size_t flight = (num_launched_ - 1) % flights_.size();
  buffers_->put_masks(masks, flight);
  RUDDER_CHECK(supplied_.try_push(flight));
  return {};
}

Result<step::StepResult> DeviceExecutor::collect(step::Ticket ticket) {
  RUDDER_CHECK(!in_flight_.empty() && in_flight_.front().id == ticket.id,
               "step {} is not the oldest in flight", ticket.id);
  RUDDER_CHECK(masks_awaited_ == 0 || ticket.id != last_launched_, "step {} waits for its masks",
               ticket.id);
  const Result<Enqueued> next = next_enqueued();
  if (!next) {
    fault_ = next.error();
    return tl::unexpected<Error>(next.error());
  }
  RUDDER_CHECK(next->iteration == iteration_, "step {} lost an iteration", ticket.id);
  ++num_collected_;
  const bool waits = in_flight_.front().is_nothing;
  if (++iteration_ == in_flight_.front().repeat) {
    in_flight_.pop_front();
    iteration_ = 0;
  }
  Flight& flight = flights_[next->flight];
  const Iteration& iteration = flight.iterations[static_cast<size_t>(next->iteration)];
  const bool was_done = iteration.done->done();
  Result<void> ran = iteration.enqueued;
  if (ran) ran = await_done(*iteration.done);
  if (!ran) {
    fault_ = ran.error();
    return tl::unexpected<Error>(ran.error());
  }
  step::StepResult result = flight.result;
  result.iteration = next->iteration;
  if (kept_.records != nullptr) result.records_done = kept_.records->take_done(waits);
  result.device_us =
      device_time_.note({.start_us = iteration.start_us,
                         .enqueued_us = iteration.enqueued_us,
                         .end_us = clock_.now_us() - flight.guesses.us,
                         .was_done = was_done,
                         .was_set_up = flight.setup.captured && next->iteration == 0});
  if (const Result<void> guessed = await_guesses(flight.guesses, was_done, result); !guessed) {
    fault_ = guessed.error();
    return tl::unexpected<Error>(guessed.error());
  }
  read_sampled(*next, result);
  if (next->iteration == 0) {
    scorer_->read(next->flight, result);
    for (size_t i = 0; i < flight.filled.size(); ++i) {
      const FilledLatches& filled = flight.filled[i];
      result.seqs[static_cast<size_t>(filled.seq)].clipped_samples =
          taps_->clipped_samples(next->flight, i, filled.scores);
    }
  }
  if (const Result<void> copied = finish_captured(flight, result); !copied) {
    fault_ = copied.error();
    return tl::unexpected<Error>(copied.error());
  }
  return result;
}

// A rank's worker may stand still while others say that it does, and so may a stage: the failure of
// the group or of the pipeline ends the wait.
Result<DeviceExecutor::Enqueued> DeviceExecutor::next_enqueued() {
  constexpr std::chrono::milliseconds kLook{StageLink::kLookMs};
  ops::Comm* const comm = ops::comm_of(*model_.ops);
  const bool has_others = comm != nullptr || handover_ != nullptr;
  std::optional<Enqueued> next = has_others ? enqueued_.pop_within(kLook) : enqueued_.pop();
  while (!next && has_others) {
    RUDDER_TRY_VOID(look());
    next = enqueued_.pop_within(kLook);
  }
  RUDDER_CHECK(next, "the queue of iterations is closed");
  return *next;
}

Result<void> DeviceExecutor::look() {
  if (ops::Comm* const comm = ops::comm_of(*model_.ops)) RUDDER_TRY_VOID(comm->status());
  return handover_ == nullptr ? Result<void>() : handover_->look();
}

// What a stage has enqueued waits for other stages where the host does not see it: looks find what
// never ends.
Result<void> DeviceExecutor::await_done(ops::Event& done) {
  constexpr int64_t kLookUs = int64_t{StageLink::kLookMs} * 1000;
  constexpr int64_t kPauseUs = 5;  // asking takes a lock of the driver, which the workers want
  int64_t last_look_us = clock_.now_us();
  while (handover_ != nullptr && !done.done()) {
    const int64_t asked_us = clock_.now_us();
    if (asked_us >= last_look_us + kLookUs) {
      RUDDER_TRY_VOID(look());
      last_look_us = asked_us;
    }
    while (clock_.now_us() < asked_us + kPauseUs) std::this_thread::yield();
  }
  return done.wait();
}

bool DeviceExecutor::ready(step::Ticket ticket) {
  uint64_t before = num_collected_;
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    const Launched& step = in_flight_[i];
    const int32_t next = i == 0 ? iteration_ : 0;
    if (step.id == ticket.id) {
      if (num_enqueued_.load() <= before) return false;
      const Flight& flight = flights_[(num_launched_ - in_flight_.size() + i) % flights_.size()];
      return flight.iterations[static_cast<size_t>(next)].done->done() &&
             flight.guesses.are_copied() &&
             (flight.captured == nullptr || flight.captured_out->done());
    }
    before += static_cast<uint64_t>(step.repeat - next);
  }
  return ticket.id <= last_launched_;  // collected, or not launched
}

void DeviceExecutor::work() {
  name_thread(ops::rank_of(*model_.ops), model_.spec.stage);
  for (size_t index = 0; auto plan = launched_.pop(); index = (index + 1) % flights_.size()) {
    if (stopping_) return;
    next_iteration_ = 0;
    const Result<bool> goes_on = contain([&]() -> Result<bool> {
      RUDDER_TRY_VOID(broken_);
      if (handover_ != nullptr) RUDDER_TRY_VOID(handover_->catch_up(**plan, index));
      pack(**plan, index);
      plan->reset();  // the plan's memory is the engine's again before it sees the result
      return enqueue(index);
    });
    if (goes_on ? !*goes_on : !enqueue_failed(index, goes_on.error())) return;
  }
}

// What an exception left half done may be any of the executor's state: no step runs after it.
bool DeviceExecutor::enqueue_failed(size_t index, const Error& error) {
  broken_ = tl::unexpected<Error>(error);
  fail_others(error);
  flights_[index].iterations[static_cast<size_t>(next_iteration_)].enqueued = broken_;
  if (!enqueued_.push({index, next_iteration_})) return false;
  ++num_enqueued_;
  return true;
}

// Other ranks and stages do not wait for this one any more.
void DeviceExecutor::fail_others(const Error& error) {
  if (ops::Comm* const comm = ops::comm_of(*model_.ops)) comm->fail(error);
  if (handover_ != nullptr) handover_->fail(error);
}

void DeviceExecutor::pack(const step::StepPlan& plan, size_t index) {
  Flight& flight = flights_[index];
  flight.iterations[0].start_us = clock_.now_us();
  pack_step(plan, capacity_, slots_, packed_);
  flight.edited = edit_tables(plan);
  pack_taps(plan, slots_, index, taps_.get(), packed_.taps);
  pack_adapters(plan, capacity_.adapters.num_rows, packed_.taps.adapters);
  const bool captures = ops::rank_of(*model_.ops).index == 0;
  if (!captures || (pool_ == nullptr && model_.spec.stage.is_last())) drop_captures(packed_.taps);
  flight.filled.clear();
  if (model_.spec.stage.is_last()) flight.filled = packed_.taps.filled;
  flight.repeat = plan.repeat;
  flight.result.id = plan.id;
  flight.result.seqs.clear();
  for (const step::SeqWork& work : plan.seqs) {
    flight.result.seqs.push_back({.slot = work.slot, .generation = work.generation});
  }
  flight.result.guess_us = 0;
  flight.guesses.list(plan, slots_, capacity_.drafts, source_ != nullptr);
  flight.sampled_seq.clear();
  if (model_.spec.stage.is_last()) flight.sampled_seq = packed_.sampled_seq;
  flight.num_logprobs.clear();
  for (const ops::SampleRow& row : packed_.sample_rows) {
    flight.num_logprobs.push_back(row.num_logprobs);
  }
  flight.setup = {};
  flight.result.from_graph = graphs_ != nullptr && graphs_->pad(packed_, flight.setup);
}

Result<void> DeviceExecutor::edit_tables(const step::StepPlan& plan) {
  RUDDER_CHECK(plan.adapter_edits.empty() || model_.adapters != nullptr,
               "step {} edits adapters, the executor has none", plan.id);
  if (model_.adapters != nullptr) RUDDER_TRY_VOID(model_.adapters->apply(plan));
  if (taps_ != nullptr) return taps_->apply(plan);
  RUDDER_CHECK(plan.tap_edits.empty() && plan.capture_edits.empty(),
               "step {} edits taps, the executor has none", plan.id);
  return {};
}

Result<void> DeviceExecutor::begin(size_t index) {
  Flight& flight = flights_[index];
  RUDDER_TRY_VOID(flight.edited);
  if (handover_ != nullptr) RUDDER_TRY_VOID(handover_->await_step(packed_, index));
  RUDDER_TRY(flight.step, buffers_->begin(packed_, index));
  kept_.states.copy(*model_.ops, packed_.states.copies_before);
  if (flight.result.from_graph) RUDDER_TRY_VOID(graphs_->capture(flight.step, flight.setup));
  flight.result.captured_graph = flight.setup.captured;
  if (!packed_.scores.empty()) flight.step.forward.keep_all_rows = true;
  if (handover_ != nullptr) handover_->take(packed_, flight.step, index);
  return {};
}

// To the step's next iteration.
Result<void> DeviceExecutor::advance(size_t index) {
  if (handover_ != nullptr) RUDDER_TRY_VOID(handover_->await_iteration());
  DeviceStep& step = flights_[index].step;
  buffers_->advance(step);
  if (handover_ != nullptr) handover_->take(packed_, step, index);
  return {};
}

// Behind an iteration's last op.
Result<void> DeviceExecutor::pass_on(size_t index) {
  const DeviceStep& step = flights_[index].step;
  return handover_ == nullptr ? Result<void>() : handover_->pass_on(packed_, step, index);
}

// Hands over each iteration as soon as it is enqueued: its tokens are out before the next has run,
// also where an op runs while it is enqueued.
bool DeviceExecutor::enqueue(size_t index) {
  Flight& flight = flights_[index];
  Result<void> begun = begin(index);
  if (!begun) fail_others(begun.error());
  for (int32_t i = 0; i < flight.repeat; ++i) {
    if (stopping_) return false;
    Iteration& iteration = flight.iterations[static_cast<size_t>(i)];
    if (i > 0) iteration.start_us = clock_.now_us();
    if (begun && i > 0) begun = advance(index);
    if (packed_.num_masks == 0 || !model_.spec.stage.is_last()) {
      if (begun) run(index);
    } else {
      const ops::View logits = begun ? run_forward(index) : ops::View{};
      if (!supplied_.pop()) return false;  // the device is busy meanwhile
      if (begun) buffers_->send_masks(packed_.num_masks, index);
      if (begun) sample(index, logits);
    }
    if (begun) fetch(index, i);
    iteration.enqueued_us = clock_.now_us();
    if (begun && !flight.guesses.asks.empty()) begun = guess(index);
    if (begun) begun = pass_on(index);
    if (!begun) fail_others(begun.error());
    iteration.enqueued = begun;
    if (!enqueued_.push({index, i})) return false;
    next_iteration_ = i + 1;
    ++num_enqueued_;
  }
  return true;
}

// From embedding to sampled tokens.
void DeviceExecutor::run(size_t index) {
  if (packed_.num_tokens() > 0) sample(index, run_forward(index));
}

// What has logits, if anything, and if the step's graph did not sample it.
void DeviceExecutor::sample(size_t index, const ops::View& logits) {
  if (logits.empty() || packed_.num_sampled() == 0 || !model_.spec.stage.is_last()) return;
  sample_step(*model_.ops, flights_[index].step, logits, kept_.readers);
}

// From embedding to the logits; from a graph that samples, to the sampled tokens.
ops::View DeviceExecutor::run_forward(size_t index) {
  Flight& flight = flights_[index];
  if (flight.result.from_graph) return graphs_->replay(flight.step);
  return decoder_->forward(flight.step.forward);
}

void DeviceExecutor::fetch(size_t index, int32_t iteration) {
  Flight& flight = flights_[index];
  if (iteration + 1 == flight.repeat) kept_.states.copy(*model_.ops, packed_.states.copies_after);
  if (iteration == 0 && model_.spec.stage.is_last()) {
    scorer_->run(packed_.scores, index);
    if (!flight.filled.empty()) taps_->fetch_latches(index, flight.filled);
  }
  if (packed_.num_sampled() > 0 && model_.spec.stage.is_last()) {
    buffers_->fetch(packed_.num_sampled(), packed_.any_logprobs, index, iteration);
    if (flight.guesses.are_in_step()) buffers_->fetch_guesses(index);
  }
  if (ops::Comm* const comm = ops::comm_of(*model_.ops)) comm->meet(flight.result.id);
  model_.ops->record(*flight.iterations[static_cast<size_t>(iteration)].done);
  if (iteration == 0) fetch_captured(index);
}

// Behind `done`, so that tokens do not wait for captured rows. A step that captures has one
// iteration.
void DeviceExecutor::fetch_captured(size_t index) {
  Flight& flight = flights_[index];
  flight.captured = nullptr;
  if (packed_.taps.captured.empty() || !model_.spec.stage.is_last()) return;
  flight.captured = std::make_shared<tap::CapturedRows>();
  flight.captured->tokens = packed_.taps.captured;
  const ops::View rows = taps_->ring_part(index, packed_.taps.capture_elements);
  flight.captured->dtype = rows.dtype;
  CapturePool::Lease lease = pool_->take(static_cast<int64_t>(rows.bytes()));
  if (lease.lease == nullptr) {
    model_.ops->record(*flight.captured_out);
    return;
  }
  flight.captured->data = lease.memory.data;
  flight.captured->lease = std::move(lease.lease);
  model_.ops->copy_out_aside(lease.memory, rows, *flight.captured_out);
}

// Rows of sequences that had ended are nobody's.
Result<void> DeviceExecutor::finish_captured(Flight& flight, step::StepResult& result) {
  if (flight.captured == nullptr) return {};
  RUDDER_TRY_VOID(flight.captured_out->wait());
  std::erase_if(flight.captured->tokens, [&](const tap::CapturedToken& token) {
    return result.seqs[static_cast<size_t>(token.seq)].masked;
  });
  result.captured = std::move(flight.captured);
  return {};
}

}  // namespace rudder::exec
