// rudder bench adapters: tokens per second while batches decode, on a server without adapters and
// on one with a table of them: of requests without an adapter, all with one, and in turn with each
// of many. Adapters are random, of all products that an adapter may change.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/offline_run.h"
#include "bench/workload.h"
#include "command_line.h"
#include "model_session.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/lora/library.h"
#include "rudder/tensor/dtype.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

using Adapters = std::vector<std::shared_ptr<const lora::NamedAdapter>>;

struct AdapterBench {
  SessionSettings session;
  std::string like = "llama-3.1-8b";
  std::string batches = "1,32,128";
  int32_t input_len = 32;
  int32_t output_len = 160;
  int32_t repeats = 5;
  std::string output_json;
};

// Every target, in bf16; of a size that changes what the model says and keeps it finite.
std::shared_ptr<const lora::NamedAdapter> random_adapter(const lora::Targets& targets, int32_t rank,
                                                         uint64_t number) {
  std::mt19937_64 random(number + 1);
  auto adapter = std::make_shared<lora::Adapter>();
  adapter->key = {random(), random()};
  adapter->max_rank = rank;
  size_t elements = 0;
  for (const lora::Target& target : targets) {
    elements += static_cast<size_t>((target.in + target.out) * rank);
  }
  adapter->memory.resize(elements * sizeof(tensor::BF16));
  auto* next = reinterpret_cast<tensor::BF16*>(adapter->memory.data());
  const auto matrix = [&](int64_t rows, int64_t columns) {
    const tensor::View view{next, tensor::DType::kBF16, {rows, columns}};
    uint64_t bits = random();
    for (int64_t i = 0; i < rows * columns; ++i) {
      bits = bits * 6364136223846793005u + 1442695040888963407u;
      const auto signed_bits = static_cast<int32_t>(static_cast<uint32_t>(bits >> 32));
      *next++ = tensor::to_bf16(static_cast<float>(signed_bits) * 0x1p-37f);  // up to 1 / 64
    }
    return view;
  };
  for (size_t i = 0; i < targets.size(); ++i) {
    lora::Delta delta{.target = static_cast<int32_t>(i), .scale = 1, .a = {}, .b = {}};
    delta.a = matrix(rank, targets[i].in);
    delta.b = matrix(targets[i].out, rank);
    adapter->deltas.push_back(std::move(delta));
  }
  return std::make_shared<const lora::NamedAdapter>(fmt::format("adapter-{}", number), "",
                                                    std::move(adapter));
}

// Request i of `count` has adapter i of them, in turn.
std::vector<engine::RequestParams> adapted_requests(
    const AdapterBench& bench, int32_t count, const text::Tokenizer& tokenizer,
    std::span<const Adapters::value_type> adapters) {
  WorkloadSettings workload;
  workload.num_prompts = count;
  workload.random_input_len = bench.input_len;
  workload.random_output_len = bench.output_len;
  std::vector<engine::RequestParams> requests;
  for (const WorkItem& item :
       make_workload(workload, tokenizer, bench.input_len + bench.output_len)) {
    engine::RequestParams params;
    params.prompt = item.prompt;
    params.sampling.temperature = 0;
    params.seed = 0;
    params.max_tokens = bench.output_len;
    params.ignore_eos = true;
    if (!adapters.empty()) params.adapter = adapters[requests.size() % adapters.size()];
    requests.push_back(std::move(params));
  }
  return requests;
}

// Of each repetition, after one that warms up (and brings the adapters to the device).
Result<std::vector<double>> tokens_per_second(const AdapterBench& bench, ModelSession& session,
                                              int32_t count,
                                              std::span<const Adapters::value_type> adapters) {
  std::vector<double> rates;
  for (int32_t repeat = 0; repeat <= bench.repeats; ++repeat) {
    double seconds = 0;
    RUDDER_TRY(const std::vector<LocalAnswer> answers,
               run_requests(
                   session, adapted_requests(bench, count, *session.files.tokenizer, adapters),
                   [](int64_t, int64_t) {}, &seconds));
    const DecodeWindow window = decode_window(answers);
    if (window.tokens == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "no sequence was still running when the last began: outputs are too short to "
                  "time tokens by",
                  "output-len");
    }
    if (repeat > 0) rates.push_back(static_cast<double>(window.tokens) / window.seconds);
  }
  return rates;
}

Result<std::vector<int32_t>> read_batches(const std::string& text) {
  std::vector<int32_t> batches;
  for (const char* at = text.data(); at <= text.data() + text.size();) {
    int32_t count = 0;
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), count);
    if (error != std::errc() || count < 1) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no list of counts", text),
                  "batches");
    }
    batches.push_back(count);
    at = end + 1;
  }
  return batches;
}

struct MeasuredMode {
  int32_t batch;
  std::string mode;
  std::vector<double> rates;
};

Result<void> measure_adapters(AdapterBench bench) {
  RUDDER_TRY(const std::vector<int32_t> batches, read_batches(bench.batches));
  const int32_t most = bench.session.exec.lora.max_loras;
  const int32_t rank = bench.session.exec.lora.max_rank;
  bench.session.load.load_format = "dummy";
  bench.session.load.like = bench.like;
  std::vector<MeasuredMode> rows;
  const auto run = [&](ModelSession& session, const char* mode,
                       std::span<const Adapters::value_type> adapters) -> Result<void> {
    for (const int32_t batch : batches) {
      fmt::print(stderr, "bench adapters: {} of {}\n", mode, batch);
      RUDDER_TRY(std::vector<double> rates, tokens_per_second(bench, session, batch, adapters));
      rows.push_back({batch, mode, std::move(rates)});
    }
    return {};
  };
  {
    bench.session.exec.lora.enable = false;
    RUDDER_TRY(ModelSession session, open_session("", bench.session));
    RUDDER_TRY_VOID(run(session, "no table", {}));
  }
  bench.session.exec.lora.enable = true;
  RUDDER_TRY(ModelSession session, open_session("", bench.session));
  Adapters adapters;
  for (int32_t i = 0; i < most; ++i) {
    adapters.push_back(random_adapter(session.adapters->targets(), rank, static_cast<uint64_t>(i)));
  }
  const std::span<const Adapters::value_type> all(adapters);
  RUDDER_TRY_VOID(run(session, "none", {}));
  RUDDER_TRY_VOID(run(session, "one", all.first(1)));
  const std::string many = fmt::format("{}", most);
  if (most > 1) RUDDER_TRY_VOID(run(session, many.c_str(), all));

  fmt::print("{:>6} {:>9} {:>12} {:>7}\n", "batch", "adapters", "tok/s", "share");
  json::array told;
  for (const MeasuredMode& row : rows) {
    const double rate = summarize(row.rates, {}).median;
    const auto base = std::ranges::find(rows, row.batch, &MeasuredMode::batch);  // without a table
    fmt::print("{:>6} {:>9} {:>12.1f} {:>6.1f}%\n", row.batch, row.mode, rate,
               100 * rate / summarize(base->rates, {}).median);
    told.push_back(json::object{{"batch", row.batch},
                                {"adapters", row.mode},
                                {"tokens_per_second", json::value_from(row.rates)}});
  }
  if (bench.output_json.empty()) return {};
  return write_file(bench.output_json, to_json_text(json::object{{"rows", told}}) + "\n");
}

}  // namespace

int bench_adapters(int argc, char** argv) {
  AdapterBench bench;
  SettingsTable table;
  table.section("bench adapters");
  table.add("shape", &bench.like,
            "The model's, with random weights (names: rudder make-model --help).");
  table.add("batches", &bench.batches, "How many sequences decode at once, by commas.");
  table.add("input-len", &bench.input_len, 1, 1 << 20, "Prompt tokens.");
  table.add("output-len", &bench.output_len, 2, 1 << 20, "Output tokens.");
  table.add("repeats", &bench.repeats, 1, 1000, "Of each batch; medians count.");
  bench.session.log_level = "warn";
  bench.session.engine.enable_prefix_caching = false;  // prompts come again
  bench.session.exec.lora.max_loras = 32;
  bench.session.exec.max_model_len = 4096;
  bench.session.exec.kv_cache_memory_bytes = int64_t{8} << 30;
  bench.session.declare(table);
  table.section("result");
  table.add("output-json", &bench.output_json, "Write every rate as JSON to this file.");
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder bench adapters", "Time decoding with LoRA adapters and without.", "", 0}, argc, argv,
      table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const Result<void> done = measure_adapters(std::move(bench));
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
