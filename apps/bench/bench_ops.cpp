// rudder bench ops: the macro-ops of a model's shape in whole steps, against the machine's
// ceilings.
#include <fmt/format.h>

#include <string>

#include "bench/bench_commands.h"
#include "bench/report.h"
#include "command_line.h"
#include "report_error.h"
#include "rudder/cpu/ops_bench.h"

namespace rudder::apps {
namespace {

// The shape's fields as settings; the defaults are Qwen2.5-0.5B.
struct ShapeFlags {
  cpu::OpsBenchArgs args;
  std::string dtype = "bfloat16";

  void declare(SettingsTable& table) {
    table.section("bench ops");
    cpu::BenchShape& shape = args.shape;
    table.add("hidden", &shape.hidden, 16, 1 << 20, "Width of the residual stream.");
    table.add("heads", &shape.num_heads, 1, 1024, "Query heads.");
    table.add("kv-heads", &shape.num_kv_heads, 1, 1024, "Key and value heads.");
    table.add("head-dim", &shape.head_dim, 8, 1024, "Width of a head.");
    table.add("mlp", &shape.mlp_width, 16, 1 << 20, "Width of the MLP.");
    table.add("vocab", &shape.vocab, 16, 1 << 24, "Rows of the head.");
    table.add("layers", &shape.num_layers, 1, 1024, "Layers.");
    table.add("repeats", &args.repeats, 1, 10000, "Of each step; the fastest counts.");
    table.add("threads", &args.ops.num_threads, 0, 4096, "0 takes every core.");
    table.add_choice("dtype", &dtype, {"bfloat16", "float32"}, "Of weights and KV.");
  }
};

}  // namespace

int bench_ops(int argc, char** argv) {
  ShapeFlags flags;
  SettingsTable table;
  flags.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder bench ops", "Time each macro-op of a model's shape.", "", 0}, argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  flags.args.ops.dtype = flags.dtype == "float32" ? tensor::DType::kF32 : tensor::DType::kBF16;
  const Result<cpu::OpsBenchReport> report = cpu::bench_ops(flags.args);
  if (!report) return report_failure(report.error());
  fmt::print("{}", cpu::to_table(*report));
  return 0;
}

}  // namespace rudder::apps
