// rudder bench ops: the macro-ops of a model's shape in whole steps, against the machine's
// ceilings.
#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "backend.h"
#include "bench/bench_commands.h"
#include "command_line.h"
#include "report/report.h"
#include "report_error.h"
#include "rudder/cpu/ops_bench.h"
#include "rudder/exec/pjrt_device.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/make_model.h"
#include "rudder/weights/hf_config.h"
#if RUDDER_HAS_CUDA
#include "rudder/cuda/ops_bench.h"
#endif

namespace rudder::apps {
namespace {

struct OpsBenchFlags {
  exec::ExecSettings exec;
  std::string like;
  std::string weights;
  std::string steps;
  int32_t layers = 0;
  int32_t context = 512;
  int32_t repeats = 5;
  bool markdown = false;

  void declare(SettingsTable& table) {
    table.section("bench ops");
    table.add("like", &like,
              "The shape (names: rudder make-model --help); empty is qwen2.5-0.5b on a CPU, "
              "qwen2.5-7b on a GPU.");
    table.add(
        "weights", &weights,
        "How products are stored, with random codes. On a CPU: wide, q4_0, q4_1, q4_k, q5_0, "
        "q6_k, q8_0, mxfp4. On a GPU, beside a bf16 head: w4a16, w8a16, w8a8, q4_k; 4 and 8 "
        "bits in groups of 128, 8 bits with a scale a row, groups of 32 with minima. Empty is "
        "wide on a CPU, as --quantization says on a GPU.");
    table.add("steps", &steps,
              "On a CPU: SEQUENCES x TOKENS @ CONTEXT of each step, as in 1x1@128,1x512@0.");
    table.add("layers", &layers, 0, 1024, "Layers; 0 is as many as the shape has.");
    table.add("context", &context, 0, 1 << 20, "Tokens that decoding sequences have before them.");
    table.add("repeats", &repeats, 1, 10000, "Of each step; on a CPU the fastest counts.");
    table.add("markdown", &markdown, "A table for documents; of a GPU.");
    exec.declare(table);
  }
};

Result<model::ModelSpec> spec_of(const std::string& like, int32_t layers) {
  RUDDER_TRY(const std::string text, model::make_model_config(like, layers));
  RUDDER_TRY(const weights::HfConfig config, weights::HfConfig::parse(text, like));
  RUDDER_TRY(model::ModelSpec spec, model::read_config(config));
  if (gated_mlp_of(spec.layers.front()) == nullptr) {
    return fail(ErrorCode::kUnsupported, "the ops of mixtures of experts are not timed", "like");
  }
  if (!std::ranges::all_of(spec.layers, [](const auto& layer) { return attention_of(layer); })) {
    return fail(ErrorCode::kUnsupported,
                "the ops of layers without attention to keys and values are not timed", "like");
  }
  return spec;
}

// Every layer as the first one is.
template <typename Shape>
Shape shape_of(const model::ModelSpec& spec) {
  const model::Attention& attention = *attention_of(spec.layers[0]);
  Shape shape;
  shape.hidden = spec.hidden;
  shape.num_heads = attention.num_heads;
  shape.num_kv_heads = attention.num_kv_heads;
  shape.head_dim = attention.head_dim;
  shape.mlp_width = gated_mlp_of(spec.layers[0])->width;
  shape.vocab = spec.vocab;
  shape.num_layers = static_cast<int64_t>(spec.layers.size());
  shape.qkv_bias = attention.qkv_bias;
  return shape;
}

Result<std::vector<cpu::BenchStep>> parse_steps(const std::string& text) {
  std::vector<cpu::BenchStep> steps;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    cpu::BenchStep step;
    int read = 0;
    const int values = std::sscanf(word.c_str(), "%" SCNd64 "x%" SCNd64 "@%" SCNd64 "%n",
                                   &step.num_seqs, &step.q_len, &step.context, &read);
    if (values != 3 || static_cast<size_t>(read) != word.size() || step.num_seqs < 1 ||
        step.q_len < 1 || step.context < 0) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no step", word), "steps");
    }
    steps.push_back(step);
  }
  return steps;
}

Result<std::string> bench_cpu(const OpsBenchFlags& flags) {
  cpu::OpsBenchArgs args;
  RUDDER_TRY(const model::ModelSpec spec,
             spec_of(flags.like.empty() ? "qwen2.5-0.5b" : flags.like, flags.layers));
  args.shape = shape_of<cpu::BenchShape>(spec);
  args.ops.num_threads = flags.exec.threads;
  args.ops.dtype = flags.exec.dtype == "float32" ? tensor::DType::kF32 : tensor::DType::kBF16;
  args.shape.weights = flags.weights.empty() ? "wide" : flags.weights;
  if (!flags.steps.empty()) {
    RUDDER_TRY(args.steps, parse_steps(flags.steps));
  }
  args.repeats = flags.repeats;
  Progress progress("bench ops", false);
  args.told = progress.callback();
  RUDDER_TRY(const cpu::OpsBenchReport report, cpu::bench_ops(args));
  return cpu::to_table(report);
}

#if RUDDER_HAS_CUDA
Result<std::optional<ops::WeightFormat>> format_of(const std::string& weights) {
  ops::WeightFormat format{.codes = ops::Codes::kU4,
                           .scale = ops::ScaleType::kF16,
                           .group = 128,
                           .offset = ops::Offset::kMiddle};
  if (weights == "w4a16") return format;
  if (weights == "w8a16" || weights == "w8a8") {
    format.codes = ops::Codes::kI8;
    if (weights == "w8a8") format.group = 0;
    format.offset = ops::Offset::kNone;
    return format;
  }
  if (weights.empty()) return std::nullopt;
  if (weights != "q4_k") {
    return fail(ErrorCode::kInvalidArgument, fmt::format("a GPU's are no '{}'", weights),
                "weights");
  }
  format.group = 32;
  format.offset = ops::Offset::kMinimum;
  return format;
}

Result<std::string> bench_cuda(const OpsBenchFlags& flags) {
  cuda::OpsBenchArgs args;
  RUDDER_TRY(const model::ModelSpec spec,
             spec_of(flags.like.empty() ? "qwen2.5-7b" : flags.like, flags.layers));
  args.shape = shape_of<cuda::BenchShape>(spec);
  args.shape.qk_norm = attention_of(spec.layers[0])->qk_norm == model::QkNorm::kPerHead;
  RUDDER_TRY(args.ops, cuda_settings(flags.exec));
  RUDDER_TRY(args.stored, format_of(flags.weights));
  for (cuda::BenchStep& step : args.steps) {
    if (step.q_len == 1) step.context = flags.context;
  }
  args.repeats = flags.repeats;
  Progress progress("bench ops", false);
  args.told = progress.callback();
  RUDDER_TRY(const cuda::OpsBenchReport report, cuda::bench_ops(args));
  return flags.markdown ? cuda::to_markdown(report) : cuda::to_table(report);
}
#else
Result<std::string> bench_cuda(const OpsBenchFlags& /*flags*/) {
  return fail(ErrorCode::kUnsupported, "this build has no CUDA backend", "device");
}
#endif

}  // namespace

int bench_ops(int argc, char** argv) {
  OpsBenchFlags flags;
  SettingsTable table;
  flags.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder bench ops", "Time each macro-op of a model's shape.", "", 0}, argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  flags.exec = resolve_device(flags.exec);
  if (exec::is_pjrt(flags.exec.device)) {
    return report_failure({ErrorCode::kUnsupported, "a PJRT plugin has no macro-ops", "device"});
  }
  const Result<std::string> text =
      flags.exec.device == "cuda" ? bench_cuda(flags) : bench_cpu(flags);
  if (!text) return report_failure(text.error());
  fmt::print("{}", *text);
  return 0;
}

}  // namespace rudder::apps
