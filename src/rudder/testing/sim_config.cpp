#include "rudder/testing/sim_config.h"

#include <algorithm>
#include <array>
#include <string>

#include "rudder/testing/random_tree.h"
#include "rudder/testing/sim_constraint.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::testing {
namespace {

constexpr int32_t kNumFamilies = 3;

std::vector<int32_t> draw_tokens(int32_t count, SimRandom& random) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = random.in(0, kTinyAsciiVocab - 1);
  return tokens;
}

// A few characters that output really contains, across token borders as often as not.
std::string draw_stop_string(SimRandom& random) {
  std::string text;
  while (text.empty() || random.one_in(2)) text += tiny_text(random.in(2, kTinyAsciiVocab - 1));
  if (text.size() > 1 && random.one_in(2)) text.erase(0, 1);
  return text;
}

void draw_sampling(step::SamplingParams& sampling, SimRandom& random) {
  sampling.temperature = random.one_in(4) ? 0.0f : 1.0f;
  if (random.one_in(8)) sampling.repetition_penalty = 1.25f;
  if (random.one_in(8)) sampling.presence_penalty = 0.5f;
  if (random.one_in(8)) sampling.logit_bias = {{random.in(0, kTinyAsciiVocab - 1), 2.0f}};
  if (random.one_in(4)) sampling.num_logprobs = random.in(0, 3);
  if (random.one_in(6)) sampling.num_prompt_logprobs = random.in(0, 3);
  if (random.one_in(4)) sampling.stop_ids.push_back(random.in(1, kTinyAsciiVocab - 1));
}

// Groups of layers with windows as short as a few blocks, in half of the episodes; a pool of as
// many blocks a group as before.
void draw_kv_groups(step::Capacity& capacity, SimRandom& random) {
  if (random.one_in(2)) return;
  std::vector<step::KvGroup> groups(static_cast<size_t>(random.in(1, 3)));
  for (step::KvGroup& group : groups) {
    if (!random.one_in(3)) group.window = random.in(2, 5 * capacity.block_size + 2);
  }
  capacity.kv_groups = step::KvGroups(groups);
  capacity.num_blocks *= capacity.kv_groups.size();
}

// A group of ranks, in a third of the episodes; cohorts of a pipeline in another third. More steps
// are then in flight.
void draw_devices(SimConfig& config, SimRandom& random) {
  const int32_t kind = random.in(0, 2);
  if (kind == 1) {
    config.num_ranks = random.in(2, 3);
    config.failing_rank = random.in(0, config.num_ranks - 1);
    if (random.one_in(3)) {
      const auto num_steps = static_cast<int32_t>(config.num_steps);
      config.ending = SimEnding::kExecutorDies;
      config.fake.differ_at = static_cast<step::StepId>(random.in(num_steps / 4, num_steps));
      config.fake.fail_launch_at = 0;
      config.fake.fail_collect_at = 0;
    }
  }
  if (kind == 2) {
    config.settings.num_cohorts = random.in(2, 4);
    config.fake.num_cohorts = config.settings.num_cohorts;
    int32_t& in_flight = config.fake.capacity.max_in_flight;
    in_flight = std::max(in_flight, config.settings.num_cohorts + random.in(0, 1));
  }
}

// Places and files for fewer blocks than the prefixes have, as often as not.
void draw_tiers(SimConfig& config) {
  const uint64_t seed = config.fake.seed / 3;
  const bool can = config.num_ranks == 1 && config.settings.enable_prefix_caching &&
                   config.entropy.hash_bits == 128;
  if (!can) return;
  step::Capacity& capacity = config.fake.capacity;
  capacity.tiers = {
      .plain_records = static_cast<int32_t>(2 + seed / 2 % 60),
      .stated_records = capacity.states.empty() ? 0 : static_cast<int32_t>(2 + seed / 7 % 20),
      .block_bytes = 1,
      .checkpoint_bytes = 3,
      .disk_bytes = seed % 2 == 0 ? 0 : static_cast<int64_t>(4 + seed / 11 % 200)};
  config.fake.record_steps = static_cast<int32_t>(seed / 13 % 5 * 3);
  config.fake.bad_record_in = static_cast<int32_t>(seed / 17 % 3 * 8);
  config.settings.kv_store_uses = static_cast<int32_t>(1 + seed / 19 % 2);
  config.settings.kv_fetch = seed / 23 % 2 == 0 ? "auto" : "always";
}

}  // namespace

SimConfig draw_config(SimRandom& random) {
  SimConfig config;
  step::Capacity& capacity = config.fake.capacity;
  capacity.block_size = random.pick({1, 2, 4, 8, 16, 16});
  capacity.num_blocks = random.pick({16, 16, 24, 32, 32, 64, 64, 128, 256});
  capacity.num_slots = random.in(1, 10);
  capacity.max_tokens_per_step = random.pick({4, 16, 64, 256});
  capacity.max_seq_len = random.one_in(4) ? random.in(16, 160) : random.in(8, 64);
  capacity.vocab_size = kTinyAsciiVocab;
  capacity.max_in_flight = random.in(1, 3);
  capacity.max_repeat = random.pick({1, 4, 16});
  capacity.drafts.max_draft = random.pick({0, 0, 1, 3, 6});
  config.fake.seed = random.next();
  config.taps = draw_sim_taps(capacity, random);
  config.has_constraints = random.one_in(2);

  engine::EngineSettings& settings = config.settings;
  settings.max_num_seqs = random.in(1, 10);
  settings.max_num_batched_tokens = random.in(1, 64);
  settings.enable_prefix_caching = !random.one_in(8);
  settings.async_scheduling = !random.one_in(8);
  settings.multi_step = random.one_in(2) ? 1 : random.in(2, 9);
  settings.speculative_adaptive = random.one_in(2);
  // Steps take 1 ms and 10 us a token.
  if (!random.one_in(3)) settings.max_itl_ms = random.pick({0.0, 1.1, 1.5});
  settings.max_num_queued_reqs = random.in(1, 8);
  settings.max_num_queued_tokens = random.in(100, 1000);
  settings.max_queue_seconds = random.pick({0.0, 0.0, 0.004, 0.05});
  settings.max_wait_steps = 200;
  settings.mask_threads = 1;

  config.entropy.hash_key = {random.next(), random.next()};
  config.entropy.seed_key = random.next();
  if (random.one_in(8)) config.entropy.hash_bits = random.in(1, 4);

  config.num_steps = static_cast<uint64_t>(random.in(200, 3000));
  config.ending = random.pick({SimEnding::kDrain, SimEnding::kDrain, SimEnding::kDrain,
                               SimEnding::kStop, SimEnding::kExecutorDies});
  if (config.ending == SimEnding::kExecutorDies) {
    const auto at = static_cast<step::StepId>(config.num_steps);
    (random.one_in(2) ? config.fake.fail_launch_at : config.fake.fail_collect_at) = at;
  }
  if (random.one_in(2)) {
    const uint64_t key = random.next();
    config.fake.numerical = [key](uint64_t seed, int32_t position) {
      return mix64(key ^ seed ^ mix64(static_cast<uint64_t>(position))) % 200 == 0;
    };
  }
  config.max_open = random.in(1, 12);
  config.num_tenants = random.pick({1, 1, 2, 5});
  config.arrival_one_in = random.pick({2, 4, 8, 16});
  config.cancel_one_in = random.pick({10, 50, 200, 100'000});
  config.max_output = random.pick({4, 32, 128});
  for (int32_t i = 0; i < kNumFamilies; ++i) {
    config.families.push_back(draw_tokens(capacity.max_seq_len, random));
  }
  draw_kv_groups(capacity, random);
  const auto is_whole = [](const step::KvGroup& group) { return group.window == 0; };
  const bool has_whole =
      std::any_of(capacity.kv_groups.begin(), capacity.kv_groups.end(), is_whole);
  const bool from_rows = config.fake.seed % 6 == 0;
  capacity.drafts.guesses =
      capacity.drafts.max_draft > 0 && config.fake.seed % 2 == 0 && (has_whole || from_rows);
  capacity.drafts.guesses_from_rows = capacity.drafts.guesses && from_rows;
  constexpr std::array<int32_t, 3> kMultiples = {1, 4, 16};
  capacity.prompt_step_multiple = kMultiples[config.fake.seed / 12 % kMultiples.size()];
  // In a fifth of the episodes sequences have states, too few for all of them as often as not.
  const bool has_states = config.fake.seed % 5 == 0;
  if (has_states) {
    capacity.states = {.count = static_cast<int32_t>(2 + config.fake.seed / 5 % 16),
                       .bytes = 1,
                       .checkpoint_blocks = static_cast<int32_t>(config.fake.seed / 80 % 4)};
    capacity.states.slow_copies = config.fake.seed / 320 % 2 == 0;
    config.fake.copy_steps = static_cast<int32_t>(config.fake.seed / 640 % 4 * 5);
  }
  capacity.drafts.takes_trees =
      !has_states && std::all_of(capacity.kv_groups.begin(), capacity.kv_groups.end(), is_whole);
  // Of those that guess from rows a third looks up, a third keeps guesses, a third makes trees; of
  // the others a half keeps guesses.
  const bool draws_tree = from_rows || config.fake.seed % 4 == 0;
  const uint64_t way = from_rows ? config.fake.seed / 6 % 3 : config.fake.seed / 2 % 3;
  capacity.drafts.keeps_guesses = capacity.drafts.guesses && way < 2;
  if (capacity.drafts.guesses_from_rows && way == 0) {
    capacity.drafts.look_up = {.min_n = 1, .max_n = 2};
  }
  const bool makes_tree = capacity.drafts.guesses && !capacity.drafts.keeps_guesses;
  if (capacity.drafts.takes_trees && makes_tree && draws_tree) {
    capacity.drafts.max_draft = 2 * capacity.drafts.max_draft;
    capacity.drafts.guess_tree = random_tree(config.fake.seed, capacity.drafts.max_draft);
  }
  draw_devices(config, random);
  if (config.fake.seed % 3 == 1) draw_tiers(config);
  return config;
}

SimRequest draw_request(const SimConfig& config, int32_t max_seq_len, uint64_t serial,
                        SimRandom& random) {
  SimRequest request;
  engine::RequestParams& params = request.params;
  const auto& family = config.families[static_cast<size_t>(random.in(0, kNumFamilies - 1))];
  const int32_t prompt_len = random.in(1, std::max(1, max_seq_len - 1));
  const int32_t own = std::min(prompt_len, random.in(0, 6));
  params.prompt.assign(family.begin(), family.begin() + (prompt_len - own));
  const auto tail = draw_tokens(own, random);
  params.prompt.insert(params.prompt.end(), tail.begin(), tail.end());

  const int32_t room = max_seq_len - prompt_len;
  if (!random.one_in(16)) params.max_tokens = random.in(1, std::min(room, config.max_output));
  draw_sampling(params.sampling, random);
  if (random.one_in(4)) params.sampling.min_tokens = random.in(0, params.max_tokens.value_or(room));
  params.seed = random.next();
  params.ignore_eos = random.one_in(2);
  if (random.one_in(3)) {
    for (int32_t i = random.in(1, 3); i > 0; --i) params.stop.push_back(draw_stop_string(random));
  }
  params.include_stop = random.one_in(3);
  params.skip_special_tokens = !random.one_in(4);
  params.n = random.one_in(4) ? random.in(2, 3) : 1;
  params.priority = random.one_in(4) ? random.in(-1, 1) : 0;
  params.tenant = random.in(0, config.num_tenants - 1);
  if (random.one_in(6)) params.timeout = static_cast<float>(random.in(1, 40)) * 1e-3F;
  params.disable_spec_decode = random.one_in(4);
  params.echo_prompt_text = random.one_in(8);
  params.client_id = "request-" + std::to_string(serial);
  request.taps = draw_request_taps(config.taps, kTinyAsciiVocab, params, random);
  if (config.has_constraints && random.one_in(2)) {
    for (int32_t i = random.in(1, 2); i > 0; --i) {
      request.constraint_seeds.push_back(random.next());
      params.constraints.push_back(sim_constraint(request.constraint_seeds.back()));
    }
  }
  request.fresh_salt = random.one_in(8);
  if (request.fresh_salt) {
    params.cache_salt = "fresh-" + std::to_string(serial);
  } else {
    params.cache_salt = random.pick({"", "", "red", "blue"});
  }
  return request;
}

}  // namespace rudder::testing
