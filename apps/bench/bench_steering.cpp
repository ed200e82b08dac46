// rudder bench steering: what steering and capture cost, mode by mode, against a session without
// them in the same run. The engine is in this process; a request is timed from its body's text (as
// a server gets it) to its last token, with a closed loop of clients. Modes take turns within every
// round, in an order that changes from round to round.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "bench/bench_commands.h"
#include "bench/bench_dictionary.h"
#include "bench/steering_modes.h"
#include "bench/steering_report.h"
#include "bench/workload.h"
#include "command_line.h"
#include "local_client.h"
#include "model_session.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report_error.h"
#include "rudder/base/clock.h"
#include "rudder/base/json.h"
#include "rudder/server/steering/tap_fields.h"
#include "rudder/steer/segments.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct SteeringBench {
  SessionSettings session;
  std::string model;
  std::string modes;
  std::string concurrency = "8,16";
  std::string output_lens = "64,256";
  std::string sessions = "together";
  std::string capture_dir;
  double bandwidth = 0;
  SteeringLedger ledger;
  int32_t input_len = 256;
  int32_t requests = 0;
  int32_t rounds = 5;
  int64_t seed = 0;

  void declare(SettingsTable& table) {
    table.section("bench steering");
    table.add("modes", &modes,
              "Which modes, with commas between; empty is all but those of large dictionaries.");
    table.add("concurrency", &concurrency, "Clients at once: numbers with commas between.");
    table.add("output-lens", &output_lens, "Tokens that a request generates, likewise.");
    table.add("input-len", &input_len, 1, 1 << 20, "Tokens of a prompt.");
    table.add("requests", &requests, 0, 1 << 20,
              "Of a mode in a round; 0 is four for each client.");
    table.add("rounds", &rounds, 2, 1000, "How often every mode takes its turn.");
    table.add("seed", &seed, 0, INT64_MAX, "Of the prompts.");
    table.add_choice("sessions", &sessions, {"together", "in-turn"},
                     "The model with and without steering in memory at once, or one after the "
                     "other: without, with, without. The first compares better and needs room for "
                     "both.");
    table.add("capture-dir", &capture_dir,
              "Where captures are written, and deleted; empty is a folder of its own in /tmp.");
    table.add("bandwidth", &bandwidth, 0, 1e6,
              "GB/s that the device reads its memory with: floors of modes with features are then "
              "told as time too.");
    ledger.declare(table);
    session.log_level = "warn";
    session.declare(table);
  }
};

Result<std::vector<int32_t>> numbers(const std::string& text, const char* field) {
  std::vector<int32_t> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int32_t value = 0;
    const auto [rest, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || (rest < end && *rest != ',')) {
      return fail(ErrorCode::kInvalidArgument, "positive numbers with commas between", field);
    }
    out.push_back(value);
    at = rest + 1;
  }
  if (out.empty()) return fail(ErrorCode::kInvalidArgument, "nothing to measure", field);
  return out;
}

Result<std::vector<SteeringMode>> chosen_modes(const std::string& text) {
  std::vector<SteeringMode> out = {steering_modes().front()};
  if (text.empty()) {
    out = steering_modes();
    std::erase_if(out, [](const SteeringMode& mode) { return mode.is_large; });
    return out;
  }
  const std::string list = text + ",";
  for (size_t at = 0, end = 0; at < list.size(); at = end + 1) {
    end = list.find(',', at);
    const std::string name = list.substr(at, end - at);
    const auto found = std::ranges::find(steering_modes(), name, &SteeringMode::name);
    if (found == steering_modes().end()) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("there is no mode '{}'", name), "modes");
    }
    if (!found->has_steering_off) out.push_back(*found);
  }
  return out;
}

// What one trial sends.
struct Load {
  const SteeringMode* mode = nullptr;
  std::vector<WorkItem> items;
  int64_t first_index = 0;  // of its first request among all of its mode
  int32_t concurrency = 0;
};

// A request, and what it names until it is submitted.
struct Prepared {
  engine::RequestParams params;
  server::TapsLease lease;
};

class SteeringRun {
 public:
  SteeringRun(SteeringBench settings, std::vector<SteeringMode> modes)
      : settings_(std::move(settings)), modes_(std::move(modes)) {}

  // Prints the line of a mode when its last round is over, and on standard error what it does.
  Result<void> run();
  const SteeringReport& report() const { return report_; }

 private:
  // A shape of load: every mode is measured at each.
  struct Shape {
    int32_t concurrency = 0;
    int32_t output_len = 0;
  };

  Result<void> set_up();
  Result<void> add_features(const SteeringMode& mode);
  Result<void> register_dictionary(const BenchDictionary& dictionary);
  Result<void> warm_up(const Shape& shape, bool steers);
  Result<ModelSession*> session(bool steers);
  Result<void> run_round(const Shape& shape, int32_t round, bool steers, bool counts);
  void tell(const Shape& shape, const SteeringMode& mode, bool counts);
  Result<SteeringTrial> run_trial(ModelSession& session, const Load& load);
  Result<Prepared> prepare(ModelSession& session, const Load& load, size_t i) const;

  const SteeringBench settings_;
  const std::vector<SteeringMode> modes_;
  std::vector<Shape> shapes_;
  tap::Geometry geometry_;
  SessionSettings with_, without_;
  std::unique_ptr<ModelSession> steered_, plain_;
  std::vector<std::string> configs_;                // bodies of packed vectors
  std::map<std::string_view, std::string> bodies_;  // of modes with features or heads
  std::map<std::string_view, int64_t> indices_;     // requests so far, by mode
  SteeringReport report_;
  int64_t trials_ = 0;  // that count, so far
  int64_t told_us_ = 0;
};

// The settings of the two sessions: equal but for the taps, with room for what the modes ask.
Result<void> SteeringRun::set_up() {
  RUDDER_TRY(const std::vector<int32_t> clients, numbers(settings_.concurrency, "concurrency"));
  RUDDER_TRY(const std::vector<int32_t> lengths, numbers(settings_.output_lens, "output-lens"));
  for (const int32_t concurrency : clients) {
    for (const int32_t length : lengths) shapes_.push_back({concurrency, length});
  }
  const int32_t most_clients = std::ranges::max(clients);
  const int32_t longest = std::ranges::max(lengths);
  without_ = settings_.session;
  without_.engine.enable_prefix_caching = false;  // every prompt is computed, in every mode
  if (without_.exec.max_model_len == 0) {
    without_.exec.max_model_len = settings_.input_len + longest + 1;
  }
  with_ = without_;
  with_.exec.enable_steering = true;
  RUDDER_TRY(const ModelFiles files, open_model_files(settings_.model, with_.load));
  if (with_.exec.kv_cache_memory_bytes == 0) {
    RUDDER_TRY(const exec::MemoryBudget budget, budget_session(files, without_));
    const int64_t tokens = int64_t{most_clients + 1} * (settings_.input_len + longest + 2);
    const int64_t blocks = tokens / budget.block_size + 2 * most_clients;
    with_.exec.kv_cache_memory_bytes = blocks * budget.kv.groups.size() * budget.block_bytes();
    without_.exec.kv_cache_memory_bytes = with_.exec.kv_cache_memory_bytes;
  }
  RUDDER_TRY(const exec::MemoryBudget budget, budget_session(files, with_));
  geometry_ = budget.geometry;

  int32_t num_configs = 1;  // the module's
  int32_t num_captured = 0;
  int64_t num_encoded = 0;
  bool reads_rows = false;
  for (const SteeringMode& mode : modes_) {
    num_configs = std::max(num_configs, mode.num_configs);
    const int32_t layers = mode.num_captured < 0 ? geometry_.num_layers : mode.num_captured;
    num_captured = std::max(num_captured, layers);
    if (mode.adds_to_heads) bodies_[mode.name] = heads_steering(geometry_);
    RUDDER_TRY_VOID(add_features(mode));
    reads_rows = reads_rows || mode.readout != BenchReadout::kNone || mode.watches;
    num_encoded = std::max<int64_t>(num_encoded, mode.num_encoded);
  }
  for (int32_t i = 0; i < num_configs; ++i) configs_.push_back(packed_steering(geometry_, i));
  constexpr int64_t kMiB = 1 << 20;
  const int64_t row = int64_t{geometry_.hidden} * geometry_.num_layers;
  with_.exec.max_steering_rows = std::max(with_.exec.max_steering_rows, num_configs + 8);
  if (with_.exec.steering_memory_mb == 0) {
    with_.exec.steering_memory_mb = (num_configs + 8) * row * 5 / kMiB + 16;
    // One dictionary at a time: encoder and decoder, and a few numbers a feature.
    with_.exec.steering_memory_mb += num_encoded * (geometry_.hidden + 8) * 8 / kMiB;
  }
  if (num_captured == 0 && !reads_rows) return {};
  if (with_.exec.capture_memory_mb == 0) {
    constexpr int64_t kTokens = 4096;  // of a step of prompts and those in flight
    with_.exec.capture_memory_mb =
        kTokens * geometry_.hidden * std::max(num_captured, 1) * 4 / kMiB + 16;
  }
  if (num_captured == 0) return {};
  with_.steering.capture.consumers.push_back("filesystem:root=" + settings_.capture_dir);
  return {};
}

// The mode's body, its dictionary, which several modes may share, and its floor.
Result<void> SteeringRun::add_features(const SteeringMode& mode) {
  const bool is_auto = with_.steering.dictionary_dtype == "auto";
  const bool is_bf16 = is_auto ? geometry_.dtype == tensor::DType::kBF16
                               : with_.steering.dictionary_dtype == "bfloat16";
  report_.set_floor(
      std::string(mode.name),
      floor_bytes(mode, geometry_, is_bf16 ? tensor::DType::kBF16 : tensor::DType::kF32));
  report_.set_bandwidth(settings_.bandwidth);
  if (mode.readout == BenchReadout::kTopFeatures || mode.readout == BenchReadout::kListedFeatures) {
    return register_dictionary(kBenchRead);
  }
  if (mode.num_encoded > 0) {
    const BenchDictionary dictionary{.num_features = mode.num_encoded, .k = kBenchActive};
    bodies_[mode.name] =
        mode.reconstructs ? reconstruction(dictionary) : feature_clamps(dictionary, 1);
    return register_dictionary(dictionary);
  }
  if (mode.num_features > 0) bodies_[mode.name] = feature_clamps(kBenchColumns, mode.num_features);
  if (mode.is_gated) bodies_[mode.name] = gated_add(kBenchColumns, geometry_);
  if (mode.num_features > 0 || mode.is_gated || mode.watches) {
    return register_dictionary(kBenchColumns);
  }
  return {};
}

Result<void> SteeringRun::register_dictionary(const BenchDictionary& dictionary) {
  const std::string folder = settings_.capture_dir + "/dictionary/" + dictionary.name();
  const std::string flag = fmt::format("{}={}", dictionary.name(), folder);
  std::vector<std::string>& flags = with_.steering.dictionaries;
  if (std::ranges::find(flags, flag) != flags.end()) return {};
  flags.push_back(flag);
  return write_bench_dictionary(dictionary, geometry_, folder);
}

// In turn, the one that is open is closed first.
Result<ModelSession*> SteeringRun::session(bool steers) {
  std::unique_ptr<ModelSession>& wanted = steers ? steered_ : plain_;
  if (wanted != nullptr) return wanted.get();
  if (settings_.sessions == "in-turn") (steers ? plain_ : steered_).reset();
  RUDDER_TRY(ModelSession opened, open_session(settings_.model, steers ? with_ : without_));
  wanted = std::make_unique<ModelSession>(std::move(opened));
  if (steers) {
    RUDDER_TRY(const json::value body, parse_json(bench_module(geometry_), "module"));
    RUDDER_TRY_VOID(wanted->steering->library().add_json(body.as_object()));
  }
  return wanted.get();
}

// As the server does it, from the text of the body.
Result<Prepared> SteeringRun::prepare(ModelSession& session, const Load& load, size_t i) const {
  Prepared prepared;
  engine::RequestParams& params = prepared.params;
  params.prompt = load.items[i].prompt;
  params.sampling.temperature = 0;
  params.seed = 0;
  params.max_tokens = load.items[i].output_len;
  params.ignore_eos = true;
  if (session.steering == nullptr) return prepared;
  const auto index = load.first_index + static_cast<int64_t>(i);
  const auto body_of_mode = bodies_.find(load.mode->name);
  const std::string& text = body_of_mode != bodies_.end()
                                ? body_of_mode->second
                                : steering_body(*load.mode, configs_, index);
  RUDDER_TRY(const json::value body, parse_json(text, "request body"));
  RUDDER_TRY(const auto config, session.steering->library().resolve(body.as_object()));
  const auto prompt_len = static_cast<int32_t>(params.prompt.size());
  tap::SequenceTaps taps;
  if (config != nullptr) {
    steer::PromptShape shape;
    shape.prompt_len = prompt_len;
    RUDDER_TRY(taps, steer::make_taps(*config, shape));
  }
  const std::string field = capture_field(*load.mode, geometry_, kBenchRead.name());
  if (!field.empty() || load.mode->watches) {
    std::optional<json::value> captured;
    if (!field.empty()) {
      RUDDER_TRY(captured, parse_json(field, "capture"));
    }
    std::optional<steer::capture::StopWhen> stop;
    if (load.mode->watches) {
      RUDDER_TRY(const json::value when, parse_json(watched_feature(kBenchColumns), "stop_when"));
      RUDDER_TRY(stop, session.steering->library().stop_when(when, "stop_when"));
    }
    RUDDER_TRY(prepared.lease.capture,
               session.engine->captures()->spec(captured ? &*captured : nullptr, std::move(stop)));
    params.capture = prepared.lease.capture->id;
    RUDDER_TRY_VOID(steer::capture::Dispatcher::apply(*prepared.lease.capture, prompt_len, taps));
    params.client_id = fmt::format("{}-{}", load.mode->name, index);
  }
  if (taps.segments.empty() && taps.capture == nullptr) return prepared;
  RUDDER_TRY(prepared.lease.taps, session.engine->programs().keep(std::move(taps)));
  params.taps = tap::spec_of(*prepared.lease.taps);
  return prepared;
}

Result<SteeringTrial> SteeringRun::run_trial(ModelSession& session, const Load& load) {
  const SteadyClock clock;
  LocalClient client(*session.engine);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::optional<Error> error;
  std::vector<double> ttft, tpot, e2el;
  const auto work = [&] {
    for (size_t i = next++; i < load.items.size(); i = next++) {
      const int64_t start = clock.now_us();
      Result<Prepared> prepared = prepare(session, load, i);
      Result<LocalAnswer> answer = prepared ? client.ask(std::move(prepared->params))
                                            : tl::unexpected<Error>(prepared.error());
      std::lock_guard lock(mutex);
      if (answer && answer->error) answer = tl::unexpected<Error>(*answer->error);
      if (!answer) {
        error = answer.error();
        return;
      }
      const std::vector<int64_t>& at = answer->token_us;
      ttft.push_back(static_cast<double>(at.front() - start) * 1e-3);
      e2el.push_back(static_cast<double>(at.back() - start) * 1e-3);
      if (at.size() < 3) continue;
      // The last token of a request that captures comes with what its consumers say.
      tpot.push_back(static_cast<double>(at[at.size() - 2] - at.front()) * 1e-3 /
                     static_cast<double>(at.size() - 2));
    }
  };
  const uint64_t eager = session.engine->stats().eager_decodes;
  const int64_t start = clock.now_us();
  std::vector<std::thread> clients;
  clients.reserve(static_cast<size_t>(load.concurrency));
  for (int32_t c = 0; c < load.concurrency; ++c) clients.emplace_back(work);
  for (std::thread& thread : clients) thread.join();
  const double seconds = static_cast<double>(clock.now_us() - start) * 1e-6;
  if (error) return tl::unexpected<Error>(*error);
  const double tokens = static_cast<double>(load.items.size()) * load.items.front().output_len;
  return SteeringTrial{summarize(ttft, {}).median, summarize(tpot, {}).median,
                       summarize(e2el, {}).median, tokens / seconds,
                       static_cast<double>(session.engine->stats().eager_decodes - eager)};
}

// Turns that do not count, until every mode's steps are in graphs, and these tap what they use: a
// graph is captured when its steps come back, at every number of clients.
Result<void> SteeringRun::warm_up(const Shape& shape, bool steers) {
  constexpr int32_t kMostTurns = 6;
  uint64_t fewest = UINT64_MAX;
  for (int32_t turn = 0; turn < kMostTurns; ++turn) {
    const auto unsettled = [&]() -> Result<uint64_t> {
      RUDDER_TRY(const ModelSession* const open, session(steers));
      const engine::EngineStats stats = open->engine->stats();
      return stats.eager_decodes + stats.captured_graphs;
    };
    RUDDER_TRY(const uint64_t before, unsettled());
    RUDDER_TRY_VOID(run_round(shape, settings_.rounds, steers, false));
    RUDDER_TRY(const uint64_t after, unsettled());
    if (after == before || after - before >= fewest) break;  // all are, or no more will be
    fewest = after - before;
  }
  return {};
}

// Every mode of one session, at one shape of load.
Result<void> SteeringRun::run_round(const Shape& shape, int32_t round, bool steers, bool counts) {
  RUDDER_TRY(ModelSession* const open, session(steers));
  const int32_t requests = settings_.requests > 0 ? settings_.requests : 4 * shape.concurrency;
  WorkloadSettings workload;
  workload.num_prompts = requests;
  workload.random_input_len = settings_.input_len;
  workload.random_output_len = shape.output_len;
  workload.seed = settings_.seed + round;
  const std::vector<WorkItem> items =
      make_workload(workload, *open->files.tokenizer, open->memory.max_seq_len);
  for (size_t i = 0; i < modes_.size(); ++i) {
    const SteeringMode& mode = modes_[(i + static_cast<size_t>(round)) % modes_.size()];
    if (mode.has_steering_off == steers) continue;
    tell(shape, mode, counts);
    int64_t& index = indices_[mode.name];
    RUDDER_TRY(const SteeringTrial trial,
               run_trial(*open, {&mode, items, index, shape.concurrency}));
    index += static_cast<int64_t>(items.size());
    std::filesystem::remove_all(settings_.capture_dir + "/default");
    if (counts) {
      report_.add({std::string(mode.name), shape.concurrency, shape.output_len}, trial);
      ++trials_;
      fmt::print("{}", report_.new_lines(settings_.rounds));
      std::fflush(stdout);
    }
  }
  return {};
}

// What is measured now; once a second at most.
void SteeringRun::tell(const Shape& shape, const SteeringMode& mode, bool counts) {
  constexpr int64_t kEveryUs = 1'000'000;
  const int64_t now_us = SteadyClock().now_us();
  if (told_us_ != 0 && now_us < told_us_ + kEveryUs) return;
  told_us_ = now_us;
  fmt::print(stderr, "bench steering: {} of {} trials; {}{} at {} clients, {} tokens\n", trials_,
             std::ssize(shapes_) * settings_.rounds * std::ssize(modes_), counts ? "" : "warm-up, ",
             mode.name, shape.concurrency, shape.output_len);
}

Result<void> SteeringRun::run() {
  RUDDER_TRY_VOID(set_up());
  const bool in_turn = settings_.sessions == "in-turn";
  // Rounds [begin, end) of one session, after those that warm it up.
  const auto rounds = [&](bool steers, int32_t begin, int32_t end) -> Result<void> {
    for (const Shape& shape : shapes_) {
      RUDDER_TRY_VOID(warm_up(shape, steers));
      for (int32_t round = begin; round < end; ++round) {
        RUDDER_TRY_VOID(run_round(shape, round, steers, true));
      }
    }
    return {};
  };
  if (in_turn) {
    RUDDER_TRY_VOID(rounds(false, 0, settings_.rounds / 2));
    RUDDER_TRY_VOID(rounds(true, 0, settings_.rounds));
    return rounds(false, settings_.rounds / 2, settings_.rounds);
  }
  for (const Shape& shape : shapes_) {
    for (const bool steers : {false, true}) {
      RUDDER_TRY_VOID(warm_up(shape, steers));
    }
    for (int32_t round = 0; round < settings_.rounds; ++round) {
      const bool steered_first = round % 2 == 1;
      RUDDER_TRY_VOID(run_round(shape, round, steered_first, true));
      RUDDER_TRY_VOID(run_round(shape, round, !steered_first, true));
    }
  }
  return {};
}

Result<void> measure_steering(SteeringBench settings) {
  RUDDER_TRY(std::vector<SteeringMode> modes, chosen_modes(settings.modes));
  const bool own_dir = settings.capture_dir.empty();
  if (own_dir) settings.capture_dir = fmt::format("/tmp/rudder_bench_steering_{}", ::getpid());
  const std::string capture_dir = settings.capture_dir;
  std::filesystem::create_directories(capture_dir);
  const SteeringLedger ledger = settings.ledger;
  const std::string session =
      fmt::format("{}, prompts of {}", settings.sessions, settings.input_len);
  Result<void> done;
  {
    SteeringRun run(std::move(settings), std::move(modes));
    done = run.run();
    if (done) done = ledger.append(run.report(), session);
  }
  std::filesystem::remove_all(own_dir ? capture_dir : capture_dir + "/dictionary");
  return done;
}

}  // namespace

int bench_steering(int argc, char** argv) {
  SteeringBench settings;
  SettingsTable table;
  settings.declare(table);
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder bench steering",
                       "Compare steering and capture with a model that has neither.", "[MODEL]", 1},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (!arguments->positionals.empty()) settings.model = arguments->positionals[0];
  const Result<void> done = measure_steering(std::move(settings));
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
