// A line plot as SVG text: for bench results, with no plotting library.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rudder::apps {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct PlotFrame {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // points at x <= 0 are drawn at the left edge
};

std::string svg_plot(const PlotFrame& frame, const std::vector<PlotLine>& lines);

}  // namespace rudder::apps
