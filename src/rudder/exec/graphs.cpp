#include "rudder/exec/graphs.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/graph_shapes.h"

namespace rudder::exec {
namespace {

// Keys of wide graphs that are kept of a kind of step.
constexpr std::array<size_t, kNumStepKinds> kMostSeen = {64, 64, 128};

auto used_longest_ago(auto& entries) {
  return std::ranges::min_element(entries, {},
                                  [](const auto& entry) { return entry.second.last_use; });
}

// A prompt step is captured up to the last layer's mixer, which follows from the number of its
// tokens; what is behind follows from its rows of logits. A stage that others are behind has none.
GraphRest launch_prompt(model::Decoder& decoder, bool samples, const DeviceStep& step) {
  const model::Decoder::Begun begun = decoder.begin(step.forward);
  if (samples) {
    return [&decoder, begun](const DeviceStep& own) { return decoder.finish(begun, own.forward); };
  }
  decoder.finish(begun, step.forward);
  return {};
}

}  // namespace

GraphBinding bind_steps(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity,
                        const SampleReaders& readers, bool samples) {
  const auto shapes = std::make_shared<const StepShapes>(capacity, ops::rank_of(ops));
  const auto launch = [&ops, &decoder, readers, samples](const GraphKey& key, GraphEnd end,
                                                         DeviceStep& step) -> GraphRest {
    if (key.shape.kind == StepKind::kPrompt) return launch_prompt(decoder, samples, step);
    const ops::View logits = decoder.forward(step.forward);
    if (end == GraphEnd::kLogits) return [logits](const DeviceStep&) { return logits; };
    step.sample.all_greedy = end == GraphEnd::kGreedy;
    step.sample.any_logprobs = step.sample.any_changed = end == GraphEnd::kSampled;
    step.sample.any_masked = false;
    step.sample.any_drafts = key.shape.max_q_len > 1;
    if (samples) sample_step(ops, step, logits, readers);
    return {};
  };
  return {.key_of = [shapes](PackedStep& packed) { return shapes->key_of(packed); },
          .widened = [shapes](const GraphKey& key) { return shapes->widened(key); },
          .launch = launch,
          .at_start = shapes->at_start(),
          .samples = samples};
}

GraphBinding bind_passes(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity) {
  const auto launch = [&ops, &decoder](const GraphKey&, GraphEnd, DeviceStep& step) -> GraphRest {
    step.sample.logits = decoder.forward(step.forward);
    ops.sample(step.sample);
    return {};
  };
  return {.key_of = [capacity](PackedStep& packed) { return pass_key(capacity, packed); },
          .widened = [](const GraphKey& key) { return key; },
          .launch = launch};
}

void run_packed(ops::Ops& ops, model::Decoder& decoder, const Graphs* graphs, DeviceStep& step) {
  if (graphs != nullptr) {
    graphs->replay(step);
    return;
  }
  step.sample.logits = decoder.forward(step.forward);
  if (step.forward.logits_rows.num_rows() > 0) ops.sample(step.sample);
}

Result<void> Graphs::capture_at_start(StepBuffers& buffers, const ProgressFn& progress) {
  const std::ptrdiff_t total = std::ssize(binding_.at_start);
  for (std::ptrdiff_t i = 0; i < total; ++i) {
    if (progress) progress(i, total);
    Kept& kept = *at_start_.try_emplace(binding_.at_start[static_cast<size_t>(i)]).first;
    const GraphKey& key = kept.first;
    PackedStep packed;
    packed.taps.is_used = key.tapped.has_value();
    packed.taps.tapped = key.tapped.value_or(tap::PassageSet());
    packed.taps.only_adds = key.shape.only_adds;
    packed.taps.adapters.is_used = key.shape.adapts;
    packed.taps.adapters.has_one = key.shape.one_adapter;
    pad_to(key.shape, capacity_, packed);
    RUDDER_TRY(const DeviceStep step, buffers.begin(packed, 0));
    prepare(kept, step);
    for (const GraphEnd end : {GraphEnd::kGreedy, GraphEnd::kSampled, GraphEnd::kLogits}) {
      // Once as it is: a backend may set up at the first call of a shape what no capture may have.
      if (end != GraphEnd::kLogits) binding_.launch(key, end, *kept.second.step);
      RUDDER_TRY_VOID(capture_end(kept, end));
      if (!binding_.samples) break;
    }
    RUDDER_TRY_VOID(await_device());  // the next step is written to the same staging memory
  }
  if (progress) progress(total, total);
  return {};
}

GraphEnd Graphs::end_of(StepKind kind, const PackedStep& packed) const {
  if (kind == StepKind::kPrompt) return GraphEnd::kLogits;
  if (kind == StepKind::kPass || !binding_.samples) return GraphEnd::kGreedy;
  if (packed.num_masks > 0) return GraphEnd::kLogits;
  const bool is_plain = packed.all_greedy && !packed.any_logprobs && !packed.any_changed;
  return is_plain ? GraphEnd::kGreedy : GraphEnd::kSampled;
}

// A prompt step and a pass are padded the first time too, so that the kernels of the padded step
// are set up; a decode step has the kernels of those at the start.
bool Graphs::pad(PackedStep& packed, Setup& setup) {
  std::optional<GraphKey> key = binding_.key_of(packed);
  if (!key) return false;
  const StepKind kind = key->shape.kind;
  Shelf& shelf = shelves_[static_cast<size_t>(kind)];
  asked_ = {
      .shelf = &shelf, .used = {}, .wide = binding_.widened(*key), .end = end_of(kind, packed)};
  asked_.used = *std::move(key);
  const GraphKey& used = asked_.used;
  const bool is_decode = kind == StepKind::kDecode;
  if (!is_decode) pad_to(used.shape, capacity_, packed);
  if (used.tapped) {
    Count& count = shelf.counts[used];
    ++count.steps;
    count.last_use = ++shelf.num_tapped;
    if (shelf.counts.size() > rules_.most_counted) {
      shelf.counts.erase(used_longest_ago(shelf.counts));
    }
    asked_.kept = find_narrow();
  }
  if (asked_.kept == nullptr) {
    if (const auto found = at_start_.find(asked_.wide); found != at_start_.end()) {
      asked_.kept = &*found;
    }
  }
  if (asked_.kept == nullptr) {
    const auto [seen, is_new] = shelf.seen.try_emplace(asked_.wide);
    seen->second.last_use = ++shelf.num_seen;
    if (is_new) {
      setup.is_paid_once |= !shelf.has_forgotten;
      return false;
    }
  }
  if (is_decode) pad_to(used.shape, capacity_, packed);
  return true;
}

// The narrowest that taps what the step uses, of those that have its end.
Graphs::Kept* Graphs::find_narrow() {
  Kept* found = nullptr;
  for (Kept& kept : asked_.shelf->narrow) {
    const auto& [key, entry] = kept;
    const bool is_wide_enough =
        key.shape == asked_.used.shape && key.tapped->contains(*asked_.used.tapped);
    if (!is_wide_enough || entry.ends[static_cast<size_t>(asked_.end)].graph == nullptr) continue;
    if (found == nullptr || key.tapped->size() < found->first.tapped->size()) found = &kept;
  }
  if (found != nullptr) found->second.last_use = asked_.shelf->num_tapped;
  return found;
}

// Whether the step gets a narrow graph, where what it would run taps `num_tapped` macro-ops.
bool Graphs::is_due(int32_t num_tapped) const {
  const Shelf& shelf = *asked_.shelf;
  if (num_tapped == 0 || 4 * asked_.used.tapped->size() > 3 * num_tapped) return false;
  if (shelf.last_narrow && shelf.num_tapped - *shelf.last_narrow < rules_.spacing) return false;
  const auto count = shelf.counts.find(asked_.used);
  if (count == shelf.counts.end() || count->second.steps < rules_.least_steps) return false;
  if (shelf.narrow.size() < rules_.most_graphs || shelf.narrow.contains(asked_.used)) return true;
  return shelf.num_tapped - used_longest_ago(shelf.narrow)->second.last_use > rules_.idle_steps;
}

Result<Graphs::Kept*> Graphs::make_narrow() {
  Shelf& shelf = *asked_.shelf;
  shelf.last_narrow = shelf.num_tapped;
  if (shelf.narrow.size() >= rules_.most_graphs && !shelf.narrow.contains(asked_.used)) {
    RUDDER_TRY_VOID(await_device());
    const auto oldest = used_longest_ago(shelf.narrow);
    shelf.counts.erase(oldest->first);  // it has to come back as often as any other
    shelf.narrow.erase(oldest);
  }
  Kept& kept = *shelf.narrow.try_emplace(asked_.used).first;
  kept.second.last_use = shelf.num_tapped;
  return &kept;
}

Result<void> Graphs::make_room() {
  Shelf& shelf = *asked_.shelf;
  const size_t most = kMostSeen[static_cast<size_t>(asked_.wide.shape.kind)];
  if (shelf.seen.size() <= most) return {};
  RUDDER_TRY_VOID(await_device());
  shelf.has_forgotten = true;
  while (shelf.seen.size() > most) shelf.seen.erase(used_longest_ago(shelf.seen));
  return {};
}

// A graph that goes may be running.
Result<void> Graphs::await_device() {
  const std::unique_ptr<ops::Event> done = ops_.make_event();
  ops_.record(*done);
  return done->wait();
}

Result<void> Graphs::capture(const DeviceStep& step, Setup& setup) {
  Kept*& kept = asked_.kept;
  const GraphKey& runs = kept == nullptr ? asked_.wide : kept->first;
  if (asked_.used.tapped && is_due(runs.tapped->size())) {
    RUDDER_TRY(kept, make_narrow());
  } else if (kept == nullptr) {
    RUDDER_TRY_VOID(make_room());
    kept = &*asked_.shelf->seen.find(asked_.wide);
  }
  if (kept->second.ends[static_cast<size_t>(asked_.end)].graph != nullptr) return {};
  setup.captured = true;
  setup.is_paid_once |= !asked_.shelf->has_forgotten;
  prepare(*kept, step);
  return capture_end(*kept, asked_.end);
}

// The step as its graphs read it: what a later step of the key may have is not known otherwise.
void Graphs::prepare(Kept& kept, const DeviceStep& step) const {
  auto& [key, entry] = kept;
  if (entry.step) return;
  entry.step = step;
  model::ForwardBatch& forward = entry.step->forward;
  forward.attention.max_q_len = key.shape.max_q_len;
  forward.attention.max_kv_len = capacity_.max_seq_len;
  if (!key.tapped) return;
  forward.tapped = &*key.tapped;
  forward.encodes = key.shape.encodes;
  forward.taps.only_adds = forward.rows_taps.only_adds = key.shape.only_adds;
}

Result<void> Graphs::capture_end(Kept& kept, GraphEnd end) {
  auto& [key, entry] = kept;
  Captured& captured = entry.ends[static_cast<size_t>(end)];
  ops_.graph_ops()->begin_capture();
  captured.rest = binding_.launch(key, end, *entry.step);
  RUDDER_TRY(captured.graph, ops_.graph_ops()->end_capture());
  return {};
}

ops::View Graphs::replay(const DeviceStep& step) const {
  RUDDER_CHECK(asked_.kept != nullptr, "no graph of {} tokens", asked_.used.shape.tokens);
  const Entry& entry = asked_.kept->second;
  const Captured& captured = entry.ends[static_cast<size_t>(asked_.end)];
  RUDDER_CHECK(captured.graph != nullptr && entry.step->forward.ids.data == step.forward.ids.data,
               "no graph of {} tokens with these taps", asked_.used.shape.tokens);
  ops_.graph_ops()->replay(*captured.graph);
  return captured.rest ? captured.rest(step) : ops::View{};
}

}  // namespace rudder::exec
