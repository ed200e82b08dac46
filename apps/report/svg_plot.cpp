#include "report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace rudder::apps {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 40;
constexpr double kBottom = 50;
constexpr int kTicks = 5;
constexpr std::array<std::string_view, 6> kColors = {"#1f77b4", "#d62728", "#2ca02c",
                                                     "#9467bd", "#ff7f0e", "#17becf"};

// Maps values of one axis to pixels.
struct Axis {
  double low = 0;
  double high = 1;
  bool log = false;
  double pixel_low = 0;
  double pixel_high = 1;

  double place(double value) const {
    const double v = log ? std::log10(std::max(value, low)) : value;
    const double a = log ? std::log10(low) : low;
    const double b = log ? std::log10(high) : high;
    return pixel_low + (v - a) / std::max(b - a, 1e-12) * (pixel_high - pixel_low);
  }
  double tick(int i) const {
    const double share = static_cast<double>(i) / kTicks;
    return log ? low * std::pow(high / low, share) : low + share * (high - low);
  }
};

template <typename Get>
Axis fit_axis(const std::vector<PlotLine>& lines, bool log, double pixel_low, double pixel_high,
              Get get) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const PlotLine& line : lines) {
    for (const auto& point : line.points) {
      const double value = get(point);
      if (log && value <= 0) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (!std::isfinite(low)) low = log ? 0.1 : 0, high = 1;
  if (high <= low) high = low + (log ? low : 1);
  return {log ? low : std::min(low, 0.0), high, log, pixel_low, pixel_high};
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char ch : text) {
    if (ch == '<') {
      out += "&lt;";
    } else if (ch == '&') {
      out += "&amp;";
    } else {
      out.push_back(ch);
    }
  }
  return out;
}

std::string label(double x, double y, std::string_view anchor, const std::string& text) {
  return fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}'>{}</text>\n", x, y, anchor,
                     escape(text));
}

std::string grid(const Axis& x, const Axis& y) {
  std::string out;
  for (int i = 0; i <= kTicks; ++i) {
    const double px = x.place(x.tick(i));
    const double py = y.place(y.tick(i));
    out += fmt::format("<path d='M{0:.1f} {1}V{2}M{3} {4:.1f}H{5}' stroke='#ddd' fill='none'/>\n",
                       px, kTop, kHeight - kBottom, kLeft, py, kWidth - kRight);
    out += label(px, kHeight - kBottom + 16, "middle", fmt::format("{:.3g}", x.tick(i)));
    out += label(kLeft - 6, py + 4, "end", fmt::format("{:.3g}", y.tick(i)));
  }
  return out;
}

}  // namespace

std::string svg_plot(const PlotFrame& frame, const std::vector<PlotLine>& lines) {
  const Axis x = fit_axis(lines, frame.log_x, kLeft, kWidth - kRight,
                          [](const auto& point) { return point.first; });
  const Axis y = fit_axis(lines, false, kHeight - kBottom, kTop,
                          [](const auto& point) { return point.second; });
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' font-family='sans-serif' "
      "font-size='12'>\n<rect width='{0}' height='{1}' fill='white'/>\n",
      kWidth, kHeight);
  out += label(kWidth / 2, 22, "middle", frame.title);
  out += label(kWidth / 2, kHeight - 12, "middle", frame.x_label);
  out += fmt::format(
      "<text transform='translate(16 {:.0f}) rotate(-90)' text-anchor='middle'>{}</text>\n",
      kHeight / 2, escape(frame.y_label));
  out += grid(x, y);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view color = kColors[i % kColors.size()];
    out += fmt::format("<polyline fill='none' stroke='{}' stroke-width='2' points='", color);
    for (const auto& [px, py] : lines[i].points) {
      out += fmt::format("{:.1f},{:.1f} ", x.place(px), y.place(py));
    }
    const double row = kTop + 16 + 16 * static_cast<double>(i);
    out += fmt::format("'/>\n<rect x='{}' y='{}' width='12' height='4' fill='{}'/>\n", kLeft + 10,
                       row - 6, color);
    out += label(kLeft + 28, row, "start", lines[i].name);
  }
  return out + "</svg>\n";
}

}  // namespace rudder::apps
