// The answer of a sweep: its document, and its heat maps as SVG.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <string_view>

#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/server/steering/patch_sweep.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr int kCell = 28;     // pixels
constexpr int kMargin = 90;   // left of a grid and below it, for labels
constexpr int kHeading = 24;  // above a grid

std::string window_label(const tap::PositionRange& range, const std::vector<std::string>& labels) {
  if (range.end - range.begin > 1) return fmt::format("{}-{}", range.begin, range.end - 1);
  return labels[static_cast<size_t>(range.begin)];
}

void append_xml(std::string& out, std::string_view text) {
  for (const char ch : text) {
    switch (ch) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(static_cast<unsigned char>(ch) < 0x20 ? ' ' : ch);
    }
  }
}

// White at 0, red towards 1, blue towards -1.
std::string colour(double share) {
  const double strength = std::isfinite(share) ? std::clamp(std::abs(share), 0.0, 1.0) : 0;
  const auto fade = static_cast<int>(std::lround(255 * (1 - strength)));
  return share < 0 ? fmt::format("rgb({0},{0},255)", fade) : fmt::format("rgb(255,{0},{0})", fade);
}

void append_text(std::string& out, int x, int y, std::string_view more, std::string_view text) {
  fmt::format_to(std::back_inserter(out), "<text x=\"{}\" y=\"{}\" {}>", x, y, more);
  append_xml(out, text);
  out += "</text>";
}

}  // namespace

std::vector<double> sweep_metrics(const PatchSweepRequest& request,
                                  const std::vector<double>& logprobs) {
  std::vector<double> metrics;
  for (size_t run = 1; run < logprobs.size(); run += request.answers.size()) {
    metrics.push_back(request.is_difference() ? logprobs[run] - logprobs[run + 1]
                                              : std::exp(logprobs[run]));
  }
  return metrics;
}

std::string sweep_document(const PatchSweepRequest& request, const std::vector<double>& metrics,
                           const engine::Usage& usage, const text::Tokenizer& tokenizer) {
  std::vector<std::string> labels;
  labels.reserve(request.corrupted.size());
  for (const int32_t token : request.corrupted) {
    labels.push_back(to_valid_utf8(tokenizer.token_bytes(token)));
  }
  json::array positions;
  for (const tap::PositionRange& range : request.positions) {
    positions.push_back(json::array{range.begin, range.end});
  }
  json::array grids;
  size_t at = 2;
  for (const SweepGrid& grid : request.grids) {
    json::array values;
    for (size_t layer = 0; layer < grid.layers.size(); ++layer) {
      json::array row;
      for (size_t i = 0; i < request.positions.size(); ++i) row.push_back(metrics[at++]);
      values.push_back(std::move(row));
    }
    grids.push_back(json::object{{"site", std::string(tap::site_name(grid.site))},
                                 {"layers", json::value_from(grid.layers)},
                                 {"values", std::move(values)}});
  }
  json::object document = {{"id", request.id},
                           {"object", "patch_sweep"},
                           {"model", request.model},
                           {"metric", request.is_difference() ? "logit_difference" : "probability"},
                           {"clean", metrics[0]},
                           {"corrupted", metrics[1]},
                           {"tokens", json::value_from(labels)},
                           {"positions", std::move(positions)},
                           {"grids", std::move(grids)},
                           {"usage",
                            {{"prompt_tokens", usage.prompt_tokens},
                             {"completion_tokens", usage.completion_tokens},
                             {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                             {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}}}};
  if (request.with_svg) document["svg"] = sweep_svg(request, metrics, labels);
  return to_json_text(document);
}

std::string sweep_svg(const PatchSweepRequest& request, const std::vector<double>& metrics,
                      const std::vector<std::string>& labels) {
  const auto columns = static_cast<int>(request.positions.size());
  const double whole = metrics[0] - metrics[1];
  std::string body;
  int top = kHeading;
  size_t at = 2;
  for (const SweepGrid& grid : request.grids) {
    append_text(body, kMargin, top - 8, "font-weight=\"bold\"", tap::site_name(grid.site));
    const auto rows = static_cast<int>(grid.layers.size());
    for (int row = 0; row < rows; ++row) {
      const int y = top + (rows - 1 - row) * kCell;  // the last layer on top
      append_text(body, kMargin - 6, y + kCell / 2 + 4, "text-anchor=\"end\"",
                  fmt::format("{}", grid.layers[static_cast<size_t>(row)]));
      for (int column = 0; column < columns; ++column) {
        const double value = metrics[at++];
        fmt::format_to(std::back_inserter(body),
                       "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" "
                       "stroke=\"#ccc\"><title>{:.4g}</title></rect>",
                       kMargin + column * kCell, y, kCell, kCell,
                       colour((value - metrics[1]) / whole), value);
      }
    }
    const int below = top + rows * kCell + 10;
    for (int column = 0; column < columns; ++column) {
      const int x = kMargin + column * kCell + kCell / 2;
      append_text(body, x, below, fmt::format("transform=\" rotate(60 {} {})\"", x, below),
                  window_label(request.positions[static_cast<size_t>(column)], labels));
    }
    top = below + kMargin + kHeading;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"11\">{}</svg>",
      2 * kMargin + columns * kCell, top, body);
}

}  // namespace rudder::server
