// rudder bench speculation: tokens a second with drafts of a known quality, beside plain decoding
// and beside two bounds, which are what the accepted tokens could bring at most: at the measured
// time of steps whose drafts are all wrong, and at that of plain steps with as many tokens, which
// wait for no guess. With --prompts: a server's own proposer on the prompts of a file.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cstdio>
#include <memory>

#include "bench/bench_commands.h"
#include "bench/offline_run.h"
#include "bench/oracle_proposer.h"
#include "bench/speculation_on_prompts.h"
#include "bench/workload.h"
#include "command_line.h"
#include "prompt_file.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report/svg_plot.h"
#include "report_error.h"
#include "row_request.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "sampling_flags.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct SpeculationBench {
  std::string acceptances = "0.5,0.7,0.9";
  std::string lengths = "1,2,4,8";
  std::string batches = "1,8,32";
  int32_t rounds = 3;
  std::string prompts;
  int32_t max_tokens = 256;
  int32_t prompt_limit = 0;
  std::string output_json;
  std::string plot;
  std::string model;
  SessionSettings session;
  WorkloadSettings workload;

  void declare(SettingsTable& table) {
    table.section("bench speculation");
    table.add("speculative-acceptance", &acceptances,
              "Shares of guessed tokens that are right, each from 0 to 1.");
    table.add("draft-lengths", &lengths, "Tokens of a draft, each from 1 to 128.");
    table.add("batches", &batches, "Sequences at once.");
    table.add("rounds", &rounds, 1, 1000, "Runs of each case, in turn; medians are reported.");
    table.add(
        "prompts", &prompts,
        "A file of prompts, as for `rudder generate`, whose lines may be requests with fields: the "
        "proposer of --speculative-config or --speculative-method is timed on them, in place of "
        "drafts of known quality.");
    table.add("max-tokens", &max_tokens, 1, 1 << 20,
              "With --prompts: of an answer, at most, where its line does not say it.");
    table.add("prompt-limit", &prompt_limit, 0, 1 << 20,
              "With --prompts: the first so many of the file alone; 0 is all of them. Each is "
              "answered twice in each round, and in one before them.");
    workload.num_prompts = 1;  // --batches says how many
    workload.declare(table);
    session.log_level = "warn";
    session.declare(table);
    table.section("result");
    table.add("output-json", &output_json, "Write the result as JSON to this file.");
    table.add("plot", &plot, "Write the gain by length as SVG to this file.");
  }
};

// "1,8,32", each number from `least` to `most`. Error.where is the flag.
Result<std::vector<double>> read_list(const std::string& text, double least, double most,
                                      const char* flag) {
  std::vector<double> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double number = 0;
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, number);
    if (error != std::errc() || rest != text.data() + end || !(number >= least && number <= most)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no number from {} to {}", text.substr(begin, end - begin),
                              least, most),
                  flag);
    }
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

// Drafts of `length` tokens, each right with probability `acceptance`; 0 tokens: plain.
struct Case {
  int32_t length = 0;
  double acceptance = 0;
};

struct Measured {
  Case drafted;
  double rate = 0;   // tokens a second, all sequences; the median
  double gain = 1;   // over plain decoding
  double bound = 1;  // of the gain, by steps with wrong drafts
  double ideal = 0;  // likewise, by plain steps of as many tokens; 0: not measured
};

double tokens_a_step(const Case& drafted) {
  double total = 1;
  double right = 1;
  for (int32_t i = 0; i < drafted.length; ++i) total += right *= drafted.acceptance;
  return total;
}

class Sweep {
 public:
  Sweep(const SpeculationBench& bench, ModelSession& session, Oracle& oracle,
        std::vector<Case> cases)
      : bench_(bench), session_(session), oracle_(oracle), cases_(std::move(cases)) {}

  // Every case with so many sequences. The first case is plain; a length's bound is made from its
  // case without a right guess, which says how long its steps take.
  Result<std::vector<Measured>> run(int32_t batch, Progress& progress) {
    std::vector<std::vector<double>> rates(cases_.size());
    make_items(batch);
    RUDDER_TRY_VOID(rate_of({}));  // to warm up
    for (int32_t round = 0; round < bench_.rounds; ++round) {
      for (size_t i = 0; i < cases_.size(); ++i) {
        RUDDER_TRY(const double rate, rate_of(cases_[i]));
        rates[i].push_back(rate);
        progress.update(static_cast<int64_t>(static_cast<size_t>(round) * cases_.size() + i + 1),
                        static_cast<int64_t>(cases_.size()) * bench_.rounds);
      }
    }
    std::vector<Measured> measured;
    measured.reserve(cases_.size());
    for (size_t i = 0; i < cases_.size(); ++i) {
      measured.push_back({.drafted = cases_[i], .rate = summarize(rates[i], {}).median});
    }
    for (Measured& one : measured) {
      const auto wrong = std::ranges::find_if(measured, [&](const Measured& other) {
        return other.drafted.length == one.drafted.length && other.drafted.acceptance == 0;
      });
      one.gain = one.rate / measured.front().rate;
      one.bound = tokens_a_step(one.drafted) * wrong->rate / measured.front().rate;
      if (one.drafted.acceptance > 0) continue;
      RUDDER_TRY(one.ideal, ideal_of(batch, one.drafted.length, measured.front().rate));
    }
    for (Measured& one : measured) {
      const auto wrong = std::ranges::find_if(measured, [&](const Measured& other) {
        return other.drafted.length == one.drafted.length && other.drafted.acceptance == 0;
      });
      if (one.drafted.acceptance > 0) one.ideal = tokens_a_step(one.drafted) * wrong->ideal;
    }
    return measured;
  }

 private:
  void make_items(int32_t batch) {
    WorkloadSettings workload = bench_.workload;
    workload.num_prompts = batch;
    items_ = make_workload(workload, *session_.files.tokenizer, session_.memory.max_seq_len);
  }

  // A plain step's time over that of one with `length` tokens more a sequence, as more sequences
  // take it. 0 where so many do not run at once.
  Result<double> ideal_of(int32_t batch, int32_t length, double plain_rate) {
    const int64_t tokens = int64_t{batch} * (1 + length);
    if (tokens > session_.memory.max_num_seqs) return 0.0;
    std::vector<double> rates;
    make_items(static_cast<int32_t>(tokens));
    RUDDER_TRY_VOID(rate_of({}));  // to warm up
    for (int32_t round = 0; round < bench_.rounds; ++round) {
      RUDDER_TRY(const double rate, rate_of({}));
      rates.push_back(rate);
    }
    make_items(batch);
    return summarize(rates, {}).median / (1 + length) / plain_rate;
  }

  Result<double> rate_of(const Case& drafted) {
    oracle_.length = drafted.length;
    oracle_.acceptance = drafted.acceptance;
    std::vector<engine::RequestParams> requests;
    for (const WorkItem& item : items_) {
      engine::RequestParams& params = requests.emplace_back();
      params.prompt = item.prompt;
      params.sampling.temperature = 0;
      // Whatever the rounding of a step.
      params.sampling.logit_bias = {{oracle_.token, 100.0f}};
      params.seed = 0;
      params.max_tokens = item.output_len;
      params.ignore_eos = true;
    }
    double seconds = 0;
    RUDDER_TRY(const std::vector<LocalAnswer> answers,
               run_requests(
                   session_, std::move(requests), [](int64_t, int64_t) {}, &seconds));
    for (const LocalAnswer& answer : answers) {
      if (std::ranges::count(answer.tokens, oracle_.token) == std::ssize(answer.tokens)) continue;
      return fail(ErrorCode::kInternal, "an answer has other tokens than a bias asks for", "");
    }
    const DecodeWindow window = decode_window(answers);
    if (window.tokens == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "no sequence still ran when the last began: outputs are too short to time",
                  "random-output-len");
    }
    return static_cast<double>(window.tokens) / window.seconds;
  }

  const SpeculationBench& bench_;
  ModelSession& session_;
  Oracle& oracle_;
  const std::vector<Case> cases_;
  std::vector<WorkItem> items_;
};

json::object to_json(int32_t batch, const Measured& one) {
  return {{"batch", batch},
          {"draft_length", one.drafted.length},
          {"acceptance", one.drafted.acceptance},
          {"tokens_per_second", one.rate},
          {"gain", one.gain},
          {"bound", one.bound},
          {"ideal", one.ideal}};
}

void print(int32_t batch, const std::vector<Measured>& all) {
  fmt::print("\n{} sequences, plain: {:.1f} tok/s\n{:>8}{:>12}{:>10}{:>8}{:>8}{:>12}{:>8}{:>12}\n",
             batch, all.front().rate, "drafts", "acceptance", "tok/s", "gain", "bound", "of bound",
             "ideal", "of ideal");
  for (const Measured& one : all) {
    if (one.drafted.length == 0) continue;
    fmt::print("{:>8}{:>12.2f}{:>10.1f}{:>8.2f}{:>8.2f}{:>11.0f} %", one.drafted.length,
               one.drafted.acceptance, one.rate, one.gain, one.bound, 100 * one.gain / one.bound);
    if (one.ideal > 0) fmt::print("{:>8.2f}{:>11.0f} %", one.ideal, 100 * one.gain / one.ideal);
    fmt::print("\n");
  }
}

// Of one batch: the gain and its bound by length, a line an acceptance.
std::vector<PlotLine> lines_of(int32_t batch, const std::vector<Measured>& all) {
  std::vector<PlotLine> lines;
  for (const Measured& one : all) {
    if (one.drafted.length == 0 || one.drafted.acceptance == 0) continue;
    const std::string name = fmt::format("{} at once, {:g} right", batch, one.drafted.acceptance);
    auto line = std::ranges::find(lines, name, &PlotLine::name);
    if (line == lines.end()) {
      lines.push_back({name, {}});
      lines.push_back({name + ": bound", {}});
      line = lines.end() - 2;
    }
    line->points.emplace_back(one.drafted.length, one.gain);
    (line + 1)->points.emplace_back(one.drafted.length, one.bound);
  }
  return lines;
}

Result<std::vector<RowRequest>> read_requests(const ModelSession& session,
                                              const SpeculationBench& bench,
                                              const SamplingFlags& sampling) {
  RUDDER_TRY(std::vector<PromptLine> lines, read_prompt_lines(bench.prompts));
  RUDDER_TRY_VOID(check_prompt_lines(lines));
  if (lines.empty()) return fail(ErrorCode::kInvalidArgument, "has no prompt", "prompts");
  const auto most = static_cast<size_t>(bench.prompt_limit);
  if (most > 0 && most < lines.size()) lines.resize(most);
  RUDDER_TRY(const RowRequests rows, RowRequests::create(session, sampling));
  std::vector<RowRequest> requests;
  for (const PromptLine& line : lines) {
    Result<RowRequest> read = rows.read(line, false);
    if (!read) {
      Error& error = read.error();
      error.where = error.where.empty() ? line.where : line.where + ": " + error.where;
      return tl::unexpected<Error>(std::move(error));
    }
    requests.push_back(std::move(*read));
  }
  return requests;
}

Result<void> measure_proposer(SpeculationBench& bench) {
  RUDDER_TRY(const auto batches, read_list(bench.batches, 1, 65536, "batches"));
  RUDDER_TRY(const draft::Speculation speculation, bench.session.speculative.resolve());
  if (speculation.method == draft::Method::kNone) {
    return fail(ErrorCode::kInvalidArgument, "needs --speculative-config or --speculative-method",
                "prompts");
  }
  bench.session.grammars = compile_grammars({});
  RUDDER_TRY(ModelSession session, open_session(bench.model, bench.session));
  SamplingFlags sampling;
  sampling.temperature = 0;
  sampling.max_tokens = bench.max_tokens;
  RUDDER_TRY(const std::vector<RowRequest> requests, read_requests(session, bench, sampling));
  json::array rows;
  fmt::print("{:>10}{:>14}{:>16}{:>8}{:>12}{:>16}{:>12}\n", "sequences", "plain tok/s",
             "drafted tok/s", "gain", "accepted", "tokens a step", "same text");
  for (const double batch : batches) {
    Progress progress(fmt::format("bench speculation, {} at once", batch), false);
    RUDDER_TRY(const PromptsMeasured one,
               measure_prompts(session, requests, static_cast<int32_t>(batch), bench.rounds,
                               progress.callback()));
    fmt::print("{:>10}{:>14.1f}{:>16.1f}{:>8.2f}{:>12.3f}{:>16.2f}{:>12.3f}\n", one.batch,
               one.plain, one.drafted, one.drafted / one.plain, one.accepted, one.tokens_a_step,
               one.same);
    std::fflush(stdout);  // the next may take long
    rows.push_back(json::object{{"batch", one.batch},
                                {"plain_tokens_per_second", one.plain},
                                {"drafted_tokens_per_second", one.drafted},
                                {"accepted", one.accepted},
                                {"tokens_a_step", one.tokens_a_step},
                                {"same", one.same}});
  }
  if (bench.output_json.empty()) return {};
  return write_file(bench.output_json, to_json_text(rows) + "\n");
}

Result<void> sweep(SpeculationBench& bench) {
  RUDDER_TRY(const auto acceptances, read_list(bench.acceptances, 0, 1, "speculative-acceptance"));
  RUDDER_TRY(const auto lengths,
             read_list(bench.lengths, 1, draft::kMaxSpeculativeTokens, "draft-lengths"));
  RUDDER_TRY(const auto batches, read_list(bench.batches, 1, 65536, "batches"));
  std::vector<Case> cases = {{}};
  for (const double length : lengths) {
    const auto tokens = static_cast<int32_t>(length);
    cases.push_back({tokens, 0});
    for (const double acceptance : acceptances) {
      if (acceptance > 0) cases.push_back({tokens, acceptance});
    }
  }
  const auto oracle = std::make_shared<Oracle>();
  bench.session.proposer = [&] { return std::make_unique<OracleProposer>(oracle); };
  bench.session.speculative.method = "ngram";  // whose place the oracle takes
  bench.session.speculative.num_tokens = static_cast<int32_t>(*std::ranges::max_element(lengths));
  bench.session.engine.speculative_adaptive = false;
  RUDDER_TRY(ModelSession session, open_session(bench.model, bench.session));
  Sweep sweep(bench, session, *oracle, std::move(cases));
  json::array rows;
  std::vector<PlotLine> lines;
  for (const double batch : batches) {
    const auto count = static_cast<int32_t>(batch);
    Progress progress(fmt::format("bench speculation, {} at once", count), false);
    RUDDER_TRY(const std::vector<Measured> measured, sweep.run(count, progress));
    print(count, measured);
    for (const Measured& one : measured) rows.push_back(to_json(count, one));
    for (PlotLine& line : lines_of(count, measured)) lines.push_back(std::move(line));
  }
  if (!bench.output_json.empty()) {
    RUDDER_TRY_VOID(write_file(bench.output_json, to_json_text(rows) + "\n"));
  }
  if (bench.plot.empty()) return {};
  const PlotFrame frame = {.title = "Speculation: tokens a second over plain decoding",
                           .x_label = "tokens of a draft",
                           .y_label = "gain"};
  return write_file(bench.plot, svg_plot(frame, lines));
}

}  // namespace

int bench_speculation(int argc, char** argv) {
  SpeculationBench bench;
  SettingsTable table;
  bench.declare(table);
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder bench speculation",
                       "Time drafts of known quality beside plain decoding: every acceptance, "
                       "length and batch, in turn.",
                       "[MODEL]", 1},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (!arguments->positionals.empty()) bench.model = arguments->positionals[0];
  const Result<void> done = bench.prompts.empty() ? sweep(bench) : measure_proposer(bench);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
