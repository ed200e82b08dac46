#include "sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace rudder::apps {

Result<std::vector<double>> parse_numbers(std::string_view text, const std::string& flag) {
  std::vector<double> numbers;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    double number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc{} || end != part.data() + part.size() || !std::isfinite(number)) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no number", part), flag);
    }
    numbers.push_back(number);
  }
  if (numbers.empty()) return fail(ErrorCode::kInvalidArgument, "names no number", flag);
  return numbers;
}

char plot_letter(size_t index) {
  return static_cast<char>('a' + static_cast<int>(index % 26));
}

std::string text_plot(const std::vector<std::pair<double, double>>& points,
                      std::string_view x_label, std::string_view y_label) {
  constexpr size_t kColumns = 60;
  constexpr size_t kLines = 14;
  const auto along = [](const auto& point) { return point.first; };
  const auto height = [](const auto& point) { return std::log(point.second); };
  const auto range = [&](auto value) {
    const auto low = value(*std::ranges::min_element(points, {}, value));
    const auto high = value(*std::ranges::max_element(points, {}, value));
    return std::pair(low, std::max(high - low, 1e-9));
  };
  const auto [left, width] = range(along);
  const auto [bottom, tall] = range(height);
  std::vector<std::string> grid(kLines, std::string(kColumns, ' '));
  for (size_t i = 0; i < points.size(); ++i) {
    const auto x = static_cast<size_t>((along(points[i]) - left) / width * (kColumns - 1));
    const auto y = static_cast<size_t>((height(points[i]) - bottom) / tall * (kLines - 1));
    grid[kLines - 1 - y][x] = plot_letter(i);
  }
  std::string out = fmt::format("{}\n", y_label);
  for (size_t line = 0; line < kLines; ++line) {
    const double share = static_cast<double>(kLines - 1 - line) / (kLines - 1);
    out += fmt::format("{:>9.3g} |{}\n", std::exp(bottom + share * tall), grid[line]);
  }
  out += fmt::format("{:>9} +{}\n{:>11}{:<{}.3g}{:.3g} {}\n", "", std::string(kColumns, '-'), "",
                     left, kColumns - 4, left + width, x_label);
  return out;
}

}  // namespace rudder::apps
