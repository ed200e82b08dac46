// What the commands share that sweep the strength of a steering: the list of strengths and a plot
// for the terminal.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::apps {

// "-1,0,0.5"; kInvalidArgument names `flag`.
Result<std::vector<double>> parse_numbers(std::string_view text, const std::string& flag);

// Points (x, y), y > 0 on a logarithmic scale, a letter each in their order.
std::string text_plot(const std::vector<std::pair<double, double>>& points,
                      std::string_view x_label, std::string_view y_label);
char plot_letter(size_t index);

}  // namespace rudder::apps
