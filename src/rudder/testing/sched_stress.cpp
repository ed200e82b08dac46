#include "rudder/testing/sched_stress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/testing/block_mirror.h"
#include "rudder/testing/random_tree.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::testing {

namespace {

constexpr int32_t kAlphabet = 4;
constexpr int32_t kPlainPrograms = 3;  // rows 1, 2, 3 of the tap table
constexpr int32_t kScheduledRow = 4;
constexpr int32_t kWritesLatchRow = 5;
constexpr int32_t kUsesLatchRow = 6;
constexpr int32_t kControlsRow = 7;
constexpr int32_t kNumRows = 8;
constexpr int32_t kCaptureSets = 2;

// A machine that is the pipeline which the scheduler's settings speak of.
FakeOptions with_cohorts(FakeOptions machine, const sched::SchedSettings& settings) {
  machine.num_cohorts = settings.num_cohorts;
  return machine;
}

class Stress {
 public:
  explicit Stress(uint64_t seed)
      : random_(seed),
        has_tenants_(seed % 3 == 0),
        has_tiers_(seed % 3 == 1),
        fake_(draw_machine(seed)),
        settings_(draw_settings()),
        loop_(with_cohorts(fake_, settings_), settings_) {
    for (auto& prompt : prompts_) prompt = draw_tokens(pick(1, fake_.capacity.max_seq_len - 1));
    fill_tables();
  }

  std::string run(StressTotals* totals) {
    const int32_t num_sequences = pick(5, 40);
    uint64_t next_id = 1;
    for (int turns = 0; loop_.error().empty(); ++turns) {
      if (turns > 20'000) return "it does not end";
      const bool more = next_id <= static_cast<uint64_t>(num_sequences);
      if (more && chance(30)) loop_.add(draw_sequence(next_id++));
      if (next_id > 1 && chance(3)) loop_.finish(draw_id(next_id));
      if (chance(1)) loop_.scheduler().reset_prefix_cache();
      const bool can_collect = loop_.scheduler().steps_in_flight() > 0;
      const bool launched = (!can_collect || chance(60)) && loop_.launch();
      if (!launched && can_collect) loop_.collect();
      const std::string differs = mirror_.differs_from(loop_.scheduler().tiers().watched());
      if (!differs.empty()) return differs;
      if (!launched && !can_collect && !more) break;
    }
    if (loop_.error().empty()) loop_.run();
    add_totals(totals);
    if (!loop_.error().empty()) return loop_.error();
    const std::string differs = mirror_.differs_from(loop_.scheduler().tiers().watched());
    return differs.empty() ? check_order() : differs;
  }

 private:
  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(int32_t percent) { return pick(1, 100) <= percent; }

  FakeOptions draw_machine(uint64_t seed) {
    FakeOptions fake;
    fake.seed = seed;
    step::Capacity& capacity = fake.capacity;
    capacity.block_size = pick(0, 1) == 0 ? 4 : pick(1, 8);
    capacity.num_blocks = pick(4, 32);
    capacity.num_slots = pick(1, 10);
    capacity.max_tokens_per_step = pick(1, 40);
    capacity.max_seq_len = pick(2, std::min(64, capacity.num_blocks * capacity.block_size));
    capacity.vocab_size = chance(50) ? 16 : 1000;
    capacity.max_in_flight = pick(1, 4);
    capacity.max_repeat = chance(50) ? 1 : pick(2, 9);
    if (seed % 4 == 0) capacity.drafts.max_draft = static_cast<int32_t>(1 + seed / 4 % 6);
    if (chance(60)) {
      capacity.geometry = {.num_layers = 2,
                           .hidden = 8,
                           .mlp_width = {16, 16},
                           .heads = {{2, 4}, {2, 4}},
                           .sites = {tap::kDenseSites, tap::kDenseSites},
                           .dtype = tensor::DType::kBF16};
      capacity.taps = {.num_rows = kNumRows,
                       .num_ops = 2 * kNumRows,
                       .num_floats = kNumRows * tap::kVectorAlign,
                       .num_capture_sets = kCaptureSets,
                       .capture_elements = pick(2, 12) * tap::kCaptureAlign,
                       .patterns = true};
    }
    if (chance(30)) {
      fake.numerical = [](uint64_t sampling_seed, int32_t position) {
        return (sampling_seed * 31 + static_cast<uint64_t>(position) * 17) % 101 == 0;
      };
    }
    if (chance(50)) draw_kv_groups(capacity);
    const bool has_whole = std::ranges::find(capacity.kv_groups, 0, &step::KvGroup::window) !=
                           capacity.kv_groups.end();
    const bool from_rows = seed % 24 == 0;
    capacity.drafts.guesses =
        capacity.drafts.max_draft > 0 && seed % 8 == 0 && (has_whole || from_rows);
    capacity.drafts.guesses_from_rows = capacity.drafts.guesses && from_rows;
    constexpr std::array<int32_t, 3> kMultiples = {1, 4, 16};
    capacity.prompt_step_multiple = kMultiples[seed / 24 % kMultiples.size()];
    const bool has_states = seed % 5 == 0;
    if (has_states) {
      capacity.states = {.count = static_cast<int32_t>(2 + seed / 5 % 12),
                         .bytes = 1,
                         .checkpoint_blocks = static_cast<int32_t>(seed / 60 % 4)};
      capacity.states.slow_copies = seed % 2 == 0;
      fake.copy_steps = static_cast<int32_t>(seed / 10 % 4 * 5);
    }
    capacity.drafts.takes_trees =
        !has_states && std::ranges::all_of(capacity.kv_groups, [](const step::KvGroup& group) {
          return group.window == 0;
        });
    const bool looks_up = capacity.drafts.guesses && seed % 24 == 8;
    capacity.drafts.keeps_guesses =
        capacity.drafts.guesses && (from_rows ? seed / 24 % 3 == 1 : seed % 32 == 16);
    if (looks_up) {
      capacity.drafts.guesses_from_rows = true;
      capacity.drafts.keeps_guesses = true;
      capacity.drafts.look_up = {.min_n = 1, .max_n = 2};
    }
    if (capacity.drafts.takes_trees && capacity.drafts.guesses && !capacity.drafts.keeps_guesses &&
        seed % (from_rows ? 48 : 16) == 0) {
      capacity.drafts.max_draft *= 2;
      capacity.drafts.guess_tree = random_tree(seed, capacity.drafts.max_draft);
    }
    if (has_tiers_) draw_tiers(seed, fake);
    return fake;
  }

  static void draw_tiers(uint64_t seed, FakeOptions& fake) {
    step::TierCaps& tiers = fake.capacity.tiers;
    tiers.plain_records = static_cast<int32_t>(1 + seed / 3 % 40);
    tiers.stated_records =
        fake.capacity.states.empty() ? 0 : static_cast<int32_t>(1 + seed / 3 % 9);
    tiers.block_bytes = 1;
    tiers.checkpoint_bytes = 3;
    tiers.disk_bytes = seed % 2 == 0 ? 0 : static_cast<int64_t>(1 + seed / 7 % 100);
    fake.record_steps = static_cast<int32_t>(seed / 9 % 5 * 3);
    fake.bad_record_in = static_cast<int32_t>(seed / 11 % 3 * 6);
  }

  void draw_kv_groups(step::Capacity& capacity) {
    std::vector<step::KvGroup> groups(static_cast<size_t>(pick(1, 3)));
    for (step::KvGroup& group : groups) group.window = chance(30) ? 0 : pick(2, 24);
    capacity.kv_groups = step::KvGroups(groups);
    capacity.num_blocks *= capacity.kv_groups.size();
  }

  sched::SchedSettings draw_settings() {
    sched::SchedSettings settings;
    settings.max_num_seqs = pick(1, 10);
    settings.max_num_batched_tokens = pick(1, 40);
    settings.max_in_flight = pick(1, 4);
    settings.multi_step = pick(1, 9);
    settings.enable_prefix_caching = chance(80);
    settings.model_identity = "model";
    settings.hash_key = {random_(), random_()};
    settings.hash_bits = chance(40) ? 1 : 128;
    settings.max_wait_steps = chance(20) ? 50 : 10'000;
    settings.block_watcher = &mirror_;
    settings.num_cohorts = chance(30) ? pick(2, 4) : 1;
    if (has_tiers_) {
      settings.enable_prefix_caching = true;
      settings.hash_bits = 128;
      settings.store_uses = pick(1, 2);
    }
    return settings;
  }

  // One program a row and two capture sets, carried by the first plan.
  void fill_tables() {
    if (!fake_.capacity.taps.steering()) return;
    programs_.push_back(nullptr);
    for (int32_t row = 1; row < kNumRows; ++row) {
      FakeProgramKind kind = FakeProgramKind::kPlain;
      if (row == kScheduledRow) kind = FakeProgramKind::kScheduled;
      if (row == kWritesLatchRow) kind = FakeProgramKind::kWritesLatch;
      if (row == kUsesLatchRow) kind = FakeProgramKind::kUsesLatch;
      if (row == kControlsRow) kind = FakeProgramKind::kControls;
      programs_.push_back(fake_program(static_cast<uint64_t>(row), kind));
      loop_.edits().taps.push_back({.tap_row = row,
                                    .first_op = 2 * row,
                                    .first_float = row * tap::kVectorAlign,
                                    .program = programs_.back()});
    }
    for (int32_t i = 0; i < kCaptureSets; ++i) {
      auto set = std::make_shared<tap::CaptureSet>();
      for (int32_t layer = 0; layer <= i; ++layer) {
        set->points.push_back({.point = {layer, tap::Site::kResidPost}, .after = layer == 1});
      }
      if (i % 2 == 1) set->points.pop_back();  // a pattern is in its place
      if (i % 2 == 1) set->patterns = {{.layer = 0, .keys = 7, .heads = {1}}};
      capture_sets_[i] = set;
      loop_.edits().captures.push_back({.capture_set = i, .set = set});
    }
  }

  void add_segment(sched::NewSequence& sequence, tap::SequenceTaps& taps, int32_t begin,
                   int32_t row) {
    add_segment(sequence, taps, taps.segments, begin, row);
  }

  void add_segment(sched::NewSequence& sequence, tap::SequenceTaps& taps,
                   std::vector<tap::TapSegment>& segments, int32_t begin, int32_t row) {
    // What such programs do depends on where the generation begins: so must their keys.
    const bool counts = row == kScheduledRow || row == kUsesLatchRow || row == kControlsRow;
    const uint64_t anchor = counts ? sequence.prompt.size() : 0;
    segments.push_back({.begin = begin,
                        .content = {static_cast<uint64_t>(row), anchor},
                        .program = programs_[static_cast<size_t>(row)]});
    sequence.tap_lease.rows.push_back(row);
    taps.is_scheduled = taps.is_scheduled || row == kScheduledRow;
  }

  // Behind the other segments: rows are leased in that order.
  void draw_thoughts(sched::NewSequence& sequence, tap::SequenceTaps& taps) {
    const auto prompt_len = static_cast<int32_t>(sequence.prompt.size());
    taps.thoughts = tap::Thoughts{
        .begin_token = pick(0, 15), .end_token = pick(0, 15), .open = chance(70), .segments = {}};
    std::vector<tap::TapSegment>& segments = taps.thoughts->segments;
    add_segment(sequence, taps, segments, 0, pick(0, kPlainPrograms));
    if (chance(40)) {
      const int32_t row = chance(20) ? kScheduledRow : pick(0, kPlainPrograms);
      add_segment(sequence, taps, segments, prompt_len + pick(1, 8), row);
    }
  }

  void draw_taps(sched::NewSequence& sequence) {
    auto taps = std::make_shared<tap::SequenceTaps>();
    const auto prompt_len = static_cast<int32_t>(sequence.prompt.size());
    if (chance(20)) {
      taps->needs_whole_prompt = true;
      const bool writes_first = prompt_len > 1 && chance(50);
      if (writes_first) add_segment(sequence, *taps, 0, kWritesLatchRow);
      add_segment(sequence, *taps, writes_first ? prompt_len - 1 : 0, kUsesLatchRow);
    } else if (chance(20)) {
      taps->is_controlled = true;
      if (prompt_len > 1) add_segment(sequence, *taps, 0, chance(50) ? 0 : kScheduledRow);
      add_segment(sequence, *taps, prompt_len - 1, kControlsRow);
    } else if (chance(30)) {
      add_segment(sequence, *taps, 0, 0);  // thoughts alone
      draw_thoughts(sequence, *taps);
    } else if (chance(60)) {
      int32_t begin = 0;
      for (int32_t i = pick(1, 4); i > 0; --i) {
        add_segment(sequence, *taps, begin, chance(20) ? kScheduledRow : pick(0, kPlainPrograms));
        begin = chance(30) ? std::max(begin + 1, prompt_len) : begin + pick(1, 20);
      }
      if (chance(40)) draw_thoughts(sequence, *taps);
    }
    if (chance(40)) {
      // A record of either set fits the smallest buffer.
      sequence.tap_lease.capture_set = pick(0, kCaptureSets - 1);
      taps->capture = capture_sets_[sequence.tap_lease.capture_set];
      int32_t begin = chance(30) ? prompt_len - 1 : pick(0, prompt_len);
      for (int32_t i = pick(1, 3); i > 0; --i) {
        const int32_t end = chance(20) ? tap::kNoEnd : begin + pick(1, 8);
        taps->captured.push_back({begin, end});
        if (end == tap::kNoEnd) break;
        begin = end + pick(0, 5);
      }
    }
    sequence.taps = std::move(taps);
  }

  std::vector<int32_t> draw_tokens(int32_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = pick(0, kAlphabet - 1);
    return tokens;
  }

  uint64_t draw_id(uint64_t next_id) {
    return static_cast<uint64_t>(pick(1, static_cast<int32_t>(next_id) - 1));
  }

  // A prefix of a few shared prompts and a tail, or a second turn of an earlier sequence.
  std::vector<int32_t> draw_prompt(uint64_t id) {
    const auto longest = static_cast<size_t>(fake_.capacity.max_seq_len - 1);
    std::vector<int32_t> prompt;
    if (id > 1 && chance(30)) {
      const SchedLoop::Record& earlier = loop_.record(draw_id(id));
      prompt = earlier.asked.prompt;
      prompt.insert(prompt.end(), earlier.tokens.begin(), earlier.tokens.end());
    } else {
      prompt = prompts_[static_cast<size_t>(pick(0, 2))];
      prompt.resize(static_cast<size_t>(pick(1, static_cast<int32_t>(prompt.size()))));
    }
    const std::vector<int32_t> tail = draw_tokens(chance(50) ? 0 : pick(1, 6));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompt.resize(std::min(prompt.size(), longest));
    return prompt;
  }

  sched::NewSequence draw_sequence(uint64_t id) {
    sched::NewSequence sequence;
    sequence.id = sched::SequenceId(id);
    sequence.tenant = has_tenants_ ? pick(0, 2) : 0;
    sequence.prompt = draw_prompt(id);
    const auto prompt_len = static_cast<int32_t>(sequence.prompt.size());
    sequence.max_len = pick(prompt_len + 1, fake_.capacity.max_seq_len);
    sequence.priority = chance(70) ? 0 : pick(-1, 1);
    sequence.cache_salt = chance(70) ? "" : chance(50) ? "a" : "b";
    step::SamplingParams& sampling = sequence.sampling;
    sampling.temperature = chance(50) ? 0.0f : 1.0f;
    sampling.seed = static_cast<uint64_t>(pick(0, 20));
    if (chance(40)) sampling.stop_ids = {1, 5, 9};
    if (chance(30)) sampling.min_tokens = pick(0, 5);
    if (chance(20)) sampling.frequency_penalty = 0.5f;
    if (chance(20)) sampling.num_logprobs = pick(0, 3);
    if (fake_.capacity.taps.steering() && chance(60)) draw_taps(sequence);
    return sequence;
  }

  // Without held admissions only a shorter prompt overtakes another of its tenant and priority, or
  // one whose answer is shorter, past a large one; but others go past those that wait for room to
  // capture.
  std::string check_order() {
    if (settings_.enable_prefix_caching) return "";
    const std::vector<sched::SequenceId>& order = loop_.first_planned();
    for (auto later = order.begin(); later != order.end(); ++later) {
      const sched::NewSequence& asked = loop_.record(later->value).asked;
      for (auto before = order.begin(); before != later; ++before) {
        const sched::NewSequence& other = loop_.record(before->value).asked;
        if (*before < *later || key_of(other) != key_of(asked)) continue;
        if (other.prompt.size() < asked.prompt.size()) continue;
        if (answer_of(other) < answer_of(asked)) continue;
        return fmt::format("sequence {} was overtaken by {}", later->value, before->value);
      }
    }
    return "";
  }
  static int32_t answer_of(const sched::NewSequence& asked) {
    return asked.max_len - static_cast<int32_t>(asked.prompt.size());
  }
  static std::tuple<int32_t, int32_t, bool> key_of(const sched::NewSequence& asked) {
    return {asked.tenant, asked.priority, asked.taps != nullptr && asked.taps->capture != nullptr};
  }

  void add_totals(StressTotals* totals) {
    if (totals == nullptr) return;
    const sched::SchedStats stats = loop_.scheduler().stats();
    totals->steps += stats.steps;
    totals->repeats += stats.iterations - stats.steps;
    totals->preemptions += stats.preemptions;
    totals->prefix_hits += stats.prefix_hits;
    totals->evictions += stats.cached.evictions;
    totals->host_hits += stats.cached.tiers.host_hits;
    totals->disk_hits += stats.cached.tiers.disk_hits;
    totals->bad_records += stats.cached.tiers.bad_records;
    totals->failed_loads += stats.cached.tiers.failed_loads;
    totals->windowed_hits += loop_.executor().windowed_hits();
    totals->late_results += stats.late_results;
    totals->blocks_told += mirror_.num_stored();
    totals->blocks_withheld += mirror_.num_withheld();
    totals->sequences += loop_.records().size();
    totals->draft_tokens += stats.draft_tokens;
    totals->accepted_tokens += stats.accepted_tokens;
    for (const auto& [id, record] : loop_.records()) {
      totals->numerical += record.end == step::SeqEnd::kNumerical;
      totals->finished_by_host += record.finished;
      if (record.asked.taps != nullptr) {
        totals->steered += !record.asked.taps->segments.empty();
        totals->captured += record.captured.size();
      }
    }
  }

  std::mt19937_64 random_;
  BlockMirror mirror_;  // before what tells it
  const bool has_tenants_;
  const bool has_tiers_;
  const FakeOptions fake_;
  const sched::SchedSettings settings_;
  SchedLoop loop_;
  std::vector<int32_t> prompts_[3];
  std::vector<std::shared_ptr<const tap::Program>> programs_;  // by row
  std::shared_ptr<const tap::CaptureSet> capture_sets_[kCaptureSets];
};

void throw_failed_check(const std::string& message) {
  throw std::runtime_error(message);
}

}  // namespace

std::string run_stress(uint64_t seed, StressTotals* totals) {
  set_check_hook(throw_failed_check);
  std::string error;
  try {
    error = Stress(seed).run(totals);
  } catch (const std::runtime_error& failed_check) {
    error = failed_check.what();
  }
  set_check_hook(nullptr);
  return error;
}

}  // namespace rudder::testing
