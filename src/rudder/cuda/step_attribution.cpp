#include "rudder/cuda/step_attribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace rudder::cuda {
namespace {

constexpr std::string_view kProduct = "linear";

// Parts of kernels' names; what has none of them is a kernel of a product.
constexpr std::pair<std::string_view, std::string_view> kOpsByName[] = {
    {"split_kernel", "attention"},
    {"wgmma_kernel", "attention"},
    {"tiled_kernel", "attention"},
    {"plain_attention", "attention"},
    {"work_kernel", "attention work list"},
    {"qkv_prep", "qkv_prep"},
    {"residual_norm", "residual_norm"},
    {"gated_act", "gated_act"},
    {"route", "route"},
    {"expert_product", "expert_linear"},
    {"open_kernel", "open_experts"},
    {"close_kernel", "close_experts"},
    {"few_pairs", "expert_linear"},
    {"convolve", "convolve"},
    {"recur", "recur"},
    {"gate_rows", "gate_rows"},
    {"combine_kernel", "combine_experts"},
    {"quantise", "quantise"},
    {"embed", "embed"},
    {"gather_rows", "gather_rows"},
    {"begin_step", "begin_step"},
    {"gather_taps", "begin_step"},
    {"advance_step", "advance_step"},
    {"sample", "sample"},
    {"select", "sample"},
    {"penal", "sample"},
    {"verify", "sample"},
    {"look_up", "look_up"},
    {"place_tails", "place_tails"},
    {"keep_guess", "keep_guess"},
    {"score", "score"},
    {"copy", "copy"},
    {"fill", "fill"},
};

std::string_view op_of(std::string_view kernel) {
  for (const auto& [part, op] : kOpsByName) {
    if (kernel.find(part) != std::string_view::npos) return op;
  }
  return kProduct;
}

// Which product one is follows from what is in front of it and behind it.
std::string_view product_between(std::string_view before, std::string_view after) {
  if (after == "qkv_prep") return "linear qkv";
  if (after == "gated_act") return "linear gate_up";
  if (after == "route") return "linear router";
  if (before == "attention") return "linear out";
  if (before == "gated_act") return "linear down";
  return "logits";
}

void name_products(std::vector<AttributedNode>& nodes) {
  const auto is_open = [](const AttributedNode& node) {
    return node.op == kProduct || node.op == "fill";
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!is_open(nodes[i])) continue;
    const auto at = nodes.begin() + static_cast<std::ptrdiff_t>(i);
    const auto after = std::find_if_not(at, nodes.end(), is_open);
    // What is quantised for a product belongs in front of it.
    const auto ahead =
        std::find_if(std::make_reverse_iterator(at), nodes.rend(),
                     [](const AttributedNode& node) { return node.op != "quantise"; });
    const std::string_view before = ahead == nodes.rend() ? std::string_view() : ahead->op;
    const std::string_view next = after == nodes.end() ? std::string_view() : after->op;
    // A fill in front of a product is the library's.
    const std::string op(product_between(before, next));
    for (auto node = at; node != after; ++node) node->op = op;
  }
}

// A layer begins with the norm in front of its qkv product and ends with its down product.
void number_layers(std::vector<AttributedNode>& nodes) {
  const auto is_down = [](const AttributedNode& node) { return node.op == "linear down"; };
  const auto last = std::find_if(nodes.rbegin(), nodes.rend(), is_down).base();
  bool has_begun = false;
  int32_t layer = 0;
  for (auto node = nodes.begin(); node != last; ++node) {
    has_begun |= node->op == "residual_norm" || node->op == "linear qkv";
    if (has_begun) node->layer = layer;
    const auto next = std::next(node);
    if (is_down(*node) && (next == nodes.end() || !is_down(*next))) ++layer;
  }
}

void add_to(AttributedLine& line, const AttributedNode& node) {
  line.count += 1;
  line.time_us += static_cast<double>(node.time_ns) * 1e-3;
  line.gap_us += static_cast<double>(node.gap_ns) * 1e-3;
}

AttributedLine& line_of_op(std::vector<AttributedLine>& lines, const std::string& op) {
  for (AttributedLine& line : lines) {
    if (line.op == op) return line;
  }
  AttributedLine& line = lines.emplace_back();
  line.op = op;
  return line;
}

void add_line(std::string& table, const AttributedLine& line, const std::string& name,
              double span_us) {
  table += fmt::format("{:<22} {:>7.1f} {:>10.2f} {:>7.1f} {:>9.2f}\n", name, line.count,
                       line.time_us, 100 * line.time_us / span_us, line.gap_us);
}

}  // namespace

std::vector<std::vector<DeviceNode>> last_replays(std::span<const DeviceNode> nodes, size_t most) {
  std::map<uint32_t, std::vector<DeviceNode>> launches;  // ids rise
  for (const DeviceNode& node : nodes) {
    if (node.graph != 0) launches[node.launch].push_back(node);
  }
  std::map<uint32_t, size_t> counts;
  for (const auto& [launch, list] : launches) ++counts[list.front().graph];
  if (counts.empty()) return {};
  const auto busiest =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  std::vector<std::vector<DeviceNode>> replays;
  for (auto& [launch, list] : launches) {
    if (list.front().graph == busiest->first) replays.push_back(std::move(list));
  }
  if (replays.size() > most) {
    replays.erase(replays.begin(), replays.end() - static_cast<std::ptrdiff_t>(most));
  }
  return replays;
}

std::vector<std::vector<DeviceNode>> last_steps(std::span<const DeviceNode> nodes, size_t most) {
  std::vector<std::vector<DeviceNode>> steps;
  bool has_begun = false;
  for (const DeviceNode& node : nodes) {
    const bool begins = op_of(node.name) == "begin_step";
    // Several kernels may begin a step.
    if (begins && !has_begun) steps.emplace_back();
    has_begun = begins;
    if (!steps.empty()) steps.back().push_back(node);
  }
  if (steps.size() > most) {
    steps.erase(steps.begin(), steps.end() - static_cast<std::ptrdiff_t>(most));
  }
  return steps;
}

std::vector<AttributedNode> attribute(std::span<const DeviceNode> replay) {
  std::vector<AttributedNode> nodes;
  int64_t busy_until = replay.empty() ? 0 : replay.front().begin_ns;
  for (const DeviceNode& node : replay) {
    const int64_t begin = std::max(node.begin_ns, busy_until);
    const int64_t end = std::max(node.end_ns, begin);
    nodes.push_back({std::string(op_of(node.name)), -1, end - begin, begin - busy_until});
    busy_until = end;
  }
  name_products(nodes);
  number_layers(nodes);
  return nodes;
}

Attribution attribute_replays(std::span<const std::vector<DeviceNode>> replays) {
  Attribution out;
  out.replays = replays.size();
  std::map<std::pair<int32_t, std::string>, AttributedLine> all;
  std::map<int32_t, AttributedLine> layers;
  for (const std::vector<DeviceNode>& replay : replays) {
    int64_t end_ns = replay.front().begin_ns;
    for (const DeviceNode& node : replay) end_ns = std::max(end_ns, node.end_ns);
    out.span_us += static_cast<double>(end_ns - replay.front().begin_ns) * 1e-3;
    for (const AttributedNode& node : attribute(replay)) {
      add_to(all[{node.layer, node.op}], node);
      add_to(layers[node.layer], node);
      add_to(line_of_op(out.ops, node.op), node);
    }
  }
  for (auto& [key, line] : all) {
    line.layer = key.first;
    line.op = key.second;
    out.all.push_back(line);
  }
  for (auto& [layer, line] : layers) {
    line.layer = layer;
    out.layers.push_back(line);
  }
  const double count = std::max<double>(1, static_cast<double>(out.replays));
  out.span_us /= count;
  for (std::vector<AttributedLine>* lines : {&out.ops, &out.layers, &out.all}) {
    for (AttributedLine& line : *lines) {
      line.count /= count;
      line.time_us /= count;
      line.gap_us /= count;
    }
  }
  return out;
}

std::string to_table(const Attribution& attribution) {
  std::string table = fmt::format("{:<22} {:>7} {:>10} {:>7} {:>9}\n", "op", "kernels", "time, us",
                                  "share %", "gap, us");
  AttributedLine total;
  for (const AttributedLine& line : attribution.ops) {
    add_line(table, line, line.op, attribution.span_us);
    total.count += line.count;
    total.time_us += line.time_us;
    total.gap_us += line.gap_us;
  }
  for (const AttributedLine& line : attribution.layers) {
    const std::string name =
        line.layer < 0 ? "outside layers" : fmt::format("layer {}", line.layer);
    add_line(table, line, name, attribution.span_us);
  }
  return table + fmt::format(
                     "kernels {:.2f} us + gaps {:.2f} us = {:.2f} us; span {:.2f} us; mean "
                     "of {} replays\n",
                     total.time_us, total.gap_us, total.time_us + total.gap_us, attribution.span_us,
                     attribution.replays);
}

}  // namespace rudder::cuda
