#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "rudder/cuda/ops_bench.h"

namespace rudder::cuda {
namespace {

double tokens_per_second(const OpsBenchRow& row) {
  return as_double(row.step.num_seqs * row.step.q_len) / row.seconds;
}

}  // namespace

std::string to_table(const OpsBenchReport& report) {
  std::string out = fmt::format(
      "{}; weights {:.2f} GB; as measured: read {:.2f} TB/s, copy {:.2f} TB/s, products {:.0f} "
      "TFLOP/s bf16, {:.0f} fp8\n",
      report.backend, as_double(report.weight_bytes) * 1e-9,
      report.ceilings.read_bytes_per_second * 1e-12, report.ceilings.copy_bytes_per_second * 1e-12,
      report.ceilings.bf16_flops * 1e-12, report.ceilings.fp8_flops * 1e-12);
  bool is_first = true;
  for (const OpsBenchRow& row : report.rows) {
    if (is_first) {
      out +=
          fmt::format("\n{} x {} tokens after {}\n{:<16}{:>8}{:>10}{:>10}{:>10}{:>9}{:>9}{:>8}\n",
                      row.step.num_seqs, row.step.q_len, row.step.context, "op", "calls", "us",
                      "us/call", "MB", "GB/s", "TFLOP/s", "floor");
    }
    is_first = row.op == "step";
    out += fmt::format("{:<16}{:>8}{:>10.1f}{:>10.2f}{:>10.1f}{:>9.0f}{:>9.1f}{:>7.0f}%\n", row.op,
                       row.calls, row.seconds * 1e6, row.seconds * 1e6 / as_double(row.calls),
                       row.bytes * 1e-6, row.bytes / row.seconds * 1e-9,
                       row.flops / row.seconds * 1e-12, 100 * row.floor_seconds / row.seconds);
    if (is_first) {
      out += fmt::format("{:<16}{:>18.0f} tokens/s\n", "", tokens_per_second(row));
    }
  }
  return out;
}

std::string to_markdown(const OpsBenchReport& report) {
  std::string head = "| us a call (share of the floor) |";
  std::string rule = "|---|";
  std::vector<std::string> names;
  std::map<std::string, std::string> lines;
  for (const OpsBenchRow& row : report.rows) {
    if (std::find(names.begin(), names.end(), row.op) == names.end()) names.push_back(row.op);
    lines[row.op] += fmt::format(" {:.1f} ({:.0f} %) |", row.seconds * 1e6 / as_double(row.calls),
                                 100 * row.floor_seconds / row.seconds);
    if (row.op != "step") continue;  // a kind of step ends with it
    head += fmt::format(" {} × {} after {} |", row.step.num_seqs, row.step.q_len, row.step.context);
    rule += "---|";
    lines["tokens/s"] += fmt::format(" {:.0f} |", tokens_per_second(row));
  }
  names.push_back("tokens/s");
  std::string out = fmt::format(
      "{}; weights {:.2f} GB; as measured: read {:.2f} TB/s, products {:.0f} TFLOP/s bf16, {:.0f} "
      "fp8\n\n{}\n{}\n",
      report.backend, as_double(report.weight_bytes) * 1e-9,
      report.ceilings.read_bytes_per_second * 1e-12, report.ceilings.bf16_flops * 1e-12,
      report.ceilings.fp8_flops * 1e-12, head, rule);
  for (const std::string& name : names) out += fmt::format("| {} |{}\n", name, lines[name]);
  return out;
}

}  // namespace rudder::cuda
