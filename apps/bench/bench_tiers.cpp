// rudder bench tiers: cached prefixes behind the device (docs/tiers.md). What the link carries and
// what records get of it; the first token of a long prompt whose prefix is fetched, beside that of
// one that is computed; what copies cost those that decode; and conversations whose prefixes are a
// multiple of the KV cache, with tiers and without.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "bench/bench_commands.h"
#include "bench/offline_run.h"
#include "bench/tiers_link.h"
#include "bench/workload.h"
#include "command_line.h"
#include "local_client.h"
#include "model_session.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;
using Prompt = std::vector<int32_t>;

struct TiersBench {
  std::string parts = "link,fetch,decode,turns";
  int32_t prefix_len = 8192;
  int32_t cache_prefixes = 3;
  int32_t rounds = 3;
  int32_t batch = 32;
  int32_t batch_output = 256;
  int32_t turns = 4;
  int32_t multiple = 4;
  std::string output_json;
  std::string model;
  SessionSettings session;

  void declare(SettingsTable& table) {
    table.section("bench tiers");
    table.add("parts", &parts,
              "Which of link, fetch, decode and turns are measured, separated by commas. fetch "
              "needs --kv-disk-dir for files; the folder's records stay.");
    table.add("prefix-len", &prefix_len, 64, 1 << 20, "Tokens of a long prompt.");
    table.add("cache-prefixes", &cache_prefixes, 1, 1024,
              "Without --kv-cache-memory-bytes: so many of these the KV cache holds.");
    table.add("rounds", &rounds, 1, 1000, "Repetitions; medians are reported.");
    table.add("decode-batch", &batch, 1, 4096, "Sequences that decode at once.");
    table.add("decode-len", &batch_output, 2, 1 << 20, "Tokens of each of their answers.");
    table.add("turns", &turns, 2, 1000, "Of a conversation; the first is not counted.");
    table.add("cache-multiple", &multiple, 1, 1000,
              "Conversations have prefixes of so many times the KV cache.");
    session.log_level = "warn";
    session.engine.kv_store_uses = 1;
    session.declare(table);
    table.section("result");
    table.add("output-json", &output_json, "Write the result as JSON to this file.");
  }
  bool has(std::string_view part) const {
    return ("," + parts + ",").find("," + std::string(part) + ",") != std::string::npos;
  }
};

class Measuring {
 public:
  explicit Measuring(TiersBench& bench) : bench_(bench), disk_(bench.session.exec.tiers.disk_dir) {}
  Result<void> run();

 private:
  // Which tiers a session has.
  enum class With : uint8_t { kNone, kHost, kFiles };

  Result<void> plan();
  Result<ModelSession> open(With with) const;
  Result<void> link();
  Result<void> fetch();
  Result<void> fetch_from(ModelSession& session, const std::vector<Prompt>& prompts, bool is_file);
  Result<void> decode(ModelSession& session, With with);
  Result<void> turn_about(ModelSession& session, With with);

  std::vector<Prompt> prompts(const ModelSession& session, int32_t count, int32_t length,
                              int64_t seed) const;
  void row(const std::string& what, double value, const std::string& unit);

  TiersBench& bench_;
  const std::string disk_;
  exec::MemoryBudget budget_;
  double cold_ms_ = 0;
  double plain_rate_ = 0;   // tokens a second
  double plain_turns_ = 0;  // likewise
  json::object result_;
};

engine::RequestParams tiers_request(const Prompt& prompt, int32_t output) {
  engine::RequestParams params;
  params.prompt = prompt;
  params.sampling.temperature = 0;
  params.seed = 0;
  params.max_tokens = output;
  params.ignore_eos = true;
  return params;
}

double first_token_ms(const LocalAnswer& answer) {
  return seconds_between(answer.submit_us, answer.token_us.front()) * 1e3;
}

// Until stores and writes of files have ended: no record was added for a while.
void settle(const ModelSession& session) {
  constexpr std::chrono::milliseconds kLook{100};
  constexpr int32_t kQuiet = 10;  // looks
  constexpr int32_t kMost = 1200;
  uint64_t last = 0;
  int32_t quiet = 0;
  for (int32_t look = 0; look < kMost && quiet < kQuiet; ++look) {
    std::this_thread::sleep_for(kLook);
    const auto tiers = session.engine->stats().prefix.tiers;
    const uint64_t now = tiers.host_stored + tiers.disk_stored + tiers.failed_writes;
    quiet = now == last ? quiet + 1 : 0;
    last = now;
  }
}

void Measuring::row(const std::string& what, double value, const std::string& unit) {
  fmt::print("{:<64}{:>12.2f} {}\n", what, value, unit);
  result_[what] = json::object{{"value", value}, {"unit", unit}};
}

std::vector<Prompt> Measuring::prompts(const ModelSession& session, int32_t count, int32_t length,
                                       int64_t seed) const {
  WorkloadSettings workload;
  workload.num_prompts = count;
  workload.random_input_len = length;
  workload.random_output_len = 1;
  workload.seed = seed;
  std::vector<Prompt> made;
  for (WorkItem& item :
       make_workload(workload, *session.files.tokenizer, session.memory.max_seq_len)) {
    made.push_back(std::move(item.prompt));
  }
  return made;
}

// The sizes of the KV cache and of host memory, where the flags leave them open.
Result<void> Measuring::plan() {
  exec::ExecSettings& exec = bench_.session.exec;
  if (exec.max_model_len == 0) exec.max_model_len = bench_.prefix_len + 64 * (bench_.turns + 4);
  RUDDER_TRY(const ModelFiles files, open_model_files(bench_.model, bench_.session.load));
  SessionSettings plain = bench_.session;
  plain.exec.tiers = {};
  RUDDER_TRY(budget_, budget_session(files, plain));
  if (exec.kv_cache_memory_bytes == 0) {
    const bool has_states = !budget_.states.empty();  // half of it is theirs
    exec.kv_cache_memory_bytes = (has_states ? 2 : 1) * bench_.cache_prefixes *
                                 budget_.kv_bytes_of(bench_.prefix_len + bench_.batch_output);
  }
  if (exec.tiers.host_gib == 0) {
    constexpr double kMore = 1.5;  // than prefixes: turns grow, and records have headers
    exec.tiers.host_gib =
        kMore * bench_.multiple * static_cast<double>(exec.kv_cache_memory_bytes) / (1 << 30);
  }
  fmt::print("KV cache {:.2f} GiB, host tier {:.2f} GiB\n",
             static_cast<double>(exec.kv_cache_memory_bytes) / (1 << 30), exec.tiers.host_gib);
  return {};
}

Result<ModelSession> Measuring::open(With with) const {
  SessionSettings settings = bench_.session;
  if (with != With::kFiles) {
    settings.exec.tiers.disk_dir.clear();
    settings.exec.tiers.disk_gib = 0;
  }
  if (with == With::kNone) settings.exec.tiers.host_gib = 0;
  return open_session(bench_.model, settings);
}

Result<void> Measuring::link() {
  fmt::print(stderr, "bench tiers: link\n");
  RUDDER_TRY(const ModelFiles files, open_model_files(bench_.model, bench_.session.load));
  RUDDER_TRY(const std::vector<exec::Ranks> devices,
             make_replicas(resolve_device(bench_.session.exec), 1, *files.checkpoint));
  RUDDER_TRY(const LinkRates rates, measure_link(*devices.front().front(), budget_, disk_));
  row("link: bytes of a record", static_cast<double>(rates.record_bytes), "bytes");
  row("link: one large copy to the device", rates.piece_in, "GB/s");
  row("link: one large copy from the device", rates.piece_out, "GB/s");
  row("link: pieces of a record's size to the device", rates.pieces_in, "GB/s");
  row("link: checksums, one thread", rates.checksum, "GB/s");
  row("link: records, host memory to the device", rates.records_in, "GB/s");
  row("link: records, the device to host memory", rates.records_out, "GB/s");
  row("link: records as a share of the link, to the device",
      100 * rates.records_in / rates.piece_in, "%");
  row("link: seconds a GiB of host memory takes at the start",
      rates.start_seconds / rates.start_gib, "s/GiB");
  if (rates.files_in > 0) {
    row("link: records, files to the device", rates.files_in, "GB/s");
    row("link: records, host memory to files", rates.files_out, "GB/s");
  }
  return {};
}

// One more prompt than the cache holds, in turn: each has pushed the first ones out.
Result<void> Measuring::fetch() {
  const With with = disk_.empty() ? With::kHost : With::kFiles;
  std::vector<Prompt> asked;
  {
    RUDDER_TRY(ModelSession session, open(with));
    asked = prompts(session, bench_.cache_prefixes + 2, bench_.prefix_len, 1);
    LocalClient client(*session.engine);
    RUDDER_TRY_VOID(client.ask(tiers_request(prompts(session, 1, bench_.prefix_len, 2)[0], 2)));
    std::vector<double> cold;
    Progress progress("bench tiers, computed", false);
    for (const Prompt& prompt : asked) {
      RUDDER_TRY(const LocalAnswer answer, client.ask(tiers_request(prompt, 2)));
      cold.push_back(first_token_ms(answer));
      progress.update(std::ssize(cold), std::ssize(asked));
    }
    cold_ms_ = summarize(cold, {}).median;
    row(fmt::format("first token of {} tokens, computed", bench_.prefix_len), cold_ms_, "ms");
    settle(session);
    RUDDER_TRY_VOID(fetch_from(session, asked, false));
  }
  if (with == With::kHost) return {};
  RUDDER_TRY(ModelSession session, open(with));
  LocalClient client(*session.engine);
  RUDDER_TRY_VOID(client.ask(tiers_request(prompts(session, 1, bench_.prefix_len, 3)[0], 2)));
  return fetch_from(session, asked, true);
}

Result<void> Measuring::fetch_from(ModelSession& session, const std::vector<Prompt>& prompts,
                                   bool is_file) {
  LocalClient client(*session.engine);
  std::vector<double> fetched;
  int64_t hits = 0;
  int64_t tokens = 0;
  const std::string from = is_file ? "files" : "host memory";
  const int32_t num_rounds = is_file ? 1 : bench_.rounds;
  Progress progress("bench tiers, from " + from, false);
  for (int32_t round = 0; round < num_rounds; ++round) {
    for (const Prompt& prompt : prompts) {
      RUDDER_TRY(const LocalAnswer answer, client.ask(tiers_request(prompt, 2)));
      fetched.push_back(first_token_ms(answer));
      hits += is_file ? answer.usage.cached_disk_tokens : answer.usage.cached_host_tokens;
      tokens += answer.usage.prompt_tokens;
      progress.update(std::ssize(fetched), num_rounds * std::ssize(prompts));
    }
  }
  const double ms = summarize(fetched, {}).median;
  row("first token, fetched from " + from, ms, "ms");
  row("first token, fetched from " + from + ", of the computed one", 100 * ms / cold_ms_, "%");
  row("tokens that were found in " + from,
      100 * static_cast<double>(hits) / static_cast<double>(tokens), "%");
  return {};
}

// Every block of an answer is stored when it is full; in the last case others' prefixes are fetched
// meanwhile, without a pause.
Result<void> Measuring::decode(ModelSession& session, With with) {
  const bool stores = with != With::kNone;
  std::vector<double> rates;
  std::vector<double> busy_rates;
  std::vector<Prompt> fetched;
  if (stores) {
    fetched = prompts(session, bench_.cache_prefixes + 2, bench_.prefix_len, 4);
    LocalClient client(*session.engine);
    for (const Prompt& prompt : fetched) {
      RUDDER_TRY_VOID(client.ask(tiers_request(prompt, 1)));
    }
    settle(session);
  }
  int64_t num_fetched = 0;
  double busy_seconds = 0;
  const auto measure = [&](int64_t seed) -> Result<double> {
    std::vector<engine::RequestParams> requests;
    for (const Prompt& prompt : prompts(session, bench_.batch, 64, seed)) {
      requests.push_back(tiers_request(prompt, bench_.batch_output));
    }
    double seconds = 0;
    Progress progress("bench tiers, decode", false);
    RUDDER_TRY(const std::vector<LocalAnswer> answers,
               run_requests(session, std::move(requests), progress.callback(), &seconds));
    busy_seconds = seconds;
    return static_cast<double>(bench_.batch) / decode_window(answers).per_token(answers.size());
  };
  RUDDER_TRY_VOID(measure(10));
  for (int32_t round = 0; round < bench_.rounds; ++round) {
    RUDDER_TRY(rates.emplace_back(), measure(11 + round));
  }
  const double rate = summarize(rates, {}).median;
  const std::string what = fmt::format("decode of {} sequences", bench_.batch);
  row(what + (stores ? ", each block stored" : ", without tiers"), rate, "tok/s");
  if (!stores) {
    plain_rate_ = rate;
    return {};
  }
  row(what + ", each block stored: more than without", 100 * (rate / plain_rate_ - 1), "%");
  for (int32_t round = 0; round < bench_.rounds; ++round) {
    std::atomic<bool> ends = false;
    std::thread fetcher([&] {
      LocalClient client(*session.engine);
      for (size_t i = 0; !ends; ++i) {
        const auto answer = client.ask(tiers_request(fetched[i % fetched.size()], 1));
        if (answer) num_fetched += answer->usage.cached_host_tokens;
      }
    });
    const Result<double> measured = measure(101 + round);
    ends = true;
    fetcher.join();
    RUDDER_TRY(busy_rates.emplace_back(), measured);
  }
  const double busy = summarize(busy_rates, {}).median;
  row(what + ", beside fetches without a pause", busy, "tok/s");
  row(what + ", beside fetches: tokens fetched a second",
      static_cast<double>(num_fetched) / (busy_seconds * bench_.rounds), "tok/s");
  return {};
}

// All conversations take a turn, then all take the next.
Result<void> Measuring::turn_about(ModelSession& session, With with) {
  constexpr int32_t kMoreTokens = 48;
  constexpr int32_t kAnswer = 16;
  const int32_t chats = bench_.multiple * bench_.cache_prefixes;
  std::vector<Prompt> talks = prompts(session, chats, bench_.prefix_len, 5);
  double seconds = 0;
  int64_t tokens = 0;
  int64_t found = 0;
  for (int32_t turn = 0; turn < bench_.turns; ++turn) {
    std::vector<engine::RequestParams> requests;
    requests.reserve(talks.size());
    for (const Prompt& talk : talks) requests.push_back(tiers_request(talk, kAnswer));
    double took = 0;
    Progress progress(fmt::format("bench tiers, turn {} of {}", turn + 1, bench_.turns), false);
    RUDDER_TRY(const std::vector<LocalAnswer> answers,
               run_requests(session, std::move(requests), progress.callback(), &took));
    const std::vector<Prompt> more = prompts(session, chats, kMoreTokens, 1000 + turn);
    for (size_t i = 0; i < talks.size(); ++i) {
      const engine::Usage& usage = answers[i].usage;
      if (turn > 0) tokens += usage.prompt_tokens + usage.completion_tokens;
      if (turn > 0) found += usage.cached_tokens;
      talks[i].insert(talks[i].end(), answers[i].tokens.begin(), answers[i].tokens.end());
      talks[i].insert(talks[i].end(), more[i].begin(), more[i].end());
    }
    if (turn > 0) seconds += took;
  }
  const double rate = static_cast<double>(tokens) / seconds;
  const std::string what =
      fmt::format("{} conversations of {} times the cache", chats, bench_.multiple);
  const bool has_tiers = with != With::kNone;
  row(what + (has_tiers ? ", with tiers" : ", without tiers"), rate, "tok/s");
  row(what + (has_tiers ? ", tokens found with tiers" : ", tokens found without"),
      100 * static_cast<double>(found) / static_cast<double>(tokens), "%");
  if (has_tiers && plain_turns_ > 0) row(what + ", gain", rate / plain_turns_, "times");
  if (!has_tiers) plain_turns_ = rate;
  return {};
}

Result<void> Measuring::run() {
  RUDDER_TRY_VOID(plan());
  if (bench_.has("link")) RUDDER_TRY_VOID(link());
  if (bench_.has("fetch")) RUDDER_TRY_VOID(fetch());
  for (const With with : {With::kNone, With::kHost}) {
    if (!bench_.has("decode") && !bench_.has("turns")) break;
    RUDDER_TRY(ModelSession session, open(with));
    if (bench_.has("decode")) RUDDER_TRY_VOID(decode(session, with));
    session.engine->reset_prefix_cache();
    if (bench_.has("turns")) RUDDER_TRY_VOID(turn_about(session, with));
    const auto tiers = session.engine->stats().prefix.tiers;
    if (with == With::kNone) continue;
    row("records that were bad", static_cast<double>(tiers.bad_records), "");
    row("tokens computed though records were there", static_cast<double>(tiers.computed_instead),
        "");
  }
  if (bench_.output_json.empty()) return {};
  return write_file(bench_.output_json, to_json_text(result_) + "\n");
}

}  // namespace

int bench_tiers(int argc, char** argv) {
  TiersBench bench;
  SettingsTable table;
  bench.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder bench tiers", "Measure cached prefixes behind the device.", "[MODEL]", 1}, argc,
      argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (!arguments->positionals.empty()) bench.model = arguments->positionals[0];
  const Result<void> done = Measuring(bench).run();
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
