#include "rudder/model/archs/layer_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::pair<std::string_view, LayerKind> kWords[] = {
    {"full_attention", LayerKind::kAttention},
    {"attention", LayerKind::kAttention},
    {"linear_attention", LayerKind::kRecurrent},
    {"mamba", LayerKind::kRecurrent},
    {"conv", LayerKind::kConvolution},
    {"mlp", LayerKind::kMlp},
    {"moe", LayerKind::kExperts}};
constexpr std::pair<char, LayerKind> kLetters[] = {{'M', LayerKind::kRecurrent},
                                                   {'*', LayerKind::kAttention},
                                                   {'-', LayerKind::kMlp},
                                                   {'E', LayerKind::kExperts}};

constexpr int64_t kMostSpaceHeads = 1 << 14;
constexpr int64_t kWidestSpaceHead = 1 << 12;
constexpr int64_t kLongestSpaceFilter = 1 << 8;

}  // namespace

Result<std::vector<LayerKind>> layer_kinds(const HfConfig& config, std::string_view key,
                                           size_t num_layers) {
  RUDDER_TRY(const std::vector<std::string> words, config.strings(key));
  if (words.size() != num_layers) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} layer types for {} layers", words.size(), num_layers),
                config.where(key));
  }
  std::vector<LayerKind> kinds;
  for (const std::string& word : words) {
    const auto* const found =
        std::ranges::find_if(kWords, [&](const auto& one) { return one.first == word; });
    if (found == std::end(kWords)) {
      return fail(ErrorCode::kUnsupported, fmt::format("the layer type '{}' is not known", word),
                  config.where(key));
    }
    kinds.push_back(found->second);
  }
  return kinds;
}

Result<std::vector<LayerKind>> pattern_kinds(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const std::string letters, config.string(key));
  std::vector<LayerKind> kinds;
  for (const char letter : letters) {
    const auto* const found =
        std::ranges::find_if(kLetters, [&](const auto& one) { return one.first == letter; });
    if (found == std::end(kLetters)) {
      return fail(ErrorCode::kUnsupported, fmt::format("the layer type '{}' is not known", letter),
                  config.where(key));
    }
    kinds.push_back(found->second);
  }
  if (kinds.empty()) return fail(ErrorCode::kCorruptFile, "no layers", config.where(key));
  return kinds;
}

Result<StateSpace> read_state_space(const HfConfig& config, int64_t width, const SpaceKeys& keys) {
  StateSpace space;
  const auto read = [&](std::string_view key, int64_t most, int32_t& out) -> Result<void> {
    RUDDER_TRY(const int64_t value, config.integer(key, 1, most));
    out = static_cast<int32_t>(value);
    return {};
  };
  RUDDER_TRY_VOID(read(keys.heads, kMostSpaceHeads, space.heads));
  RUDDER_TRY_VOID(read(keys.groups, kMostSpaceHeads, space.groups));
  RUDDER_TRY_VOID(read(keys.state_dim, kWidestSpaceHead, space.state_dim));
  RUDDER_TRY_VOID(read(keys.conv_length, kLongestSpaceFilter, space.conv_length));
  const auto word = config.string(keys.head_dim);
  if (width > 0 && (!config.has(keys.head_dim) || (word && *word == "auto"))) {
    space.head_dim = static_cast<int32_t>(width / space.heads);
  } else {
    RUDDER_TRY_VOID(read(keys.head_dim, kWidestSpaceHead, space.head_dim));
  }
  const bool fits = width == 0 || space.width() == width;
  if (!fits || space.width() > kWidestBranch || space.group_width() > kWidestBranch ||
      space.head_dim < 1) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} heads of {} have {} channels", space.heads, space.head_dim,
                            fits ? space.width() : width),
                config.where(keys.heads));
  }
  if (space.heads % space.groups != 0) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} heads are not a multiple of {} groups", space.heads, space.groups),
                config.where(keys.groups));
  }
  RUDDER_TRY(space.conv_bias, config.boolean_or(keys.conv_bias, true));
  RUDDER_TRY(space.bias, config.boolean_or(keys.bias, false));
  constexpr std::string_view kLimits = "time_step_limit";
  if (!config.has(kLimits)) return space;
  RUDDER_TRY(const std::vector<double> limits, config.limits(kLimits));
  if (limits.size() != 2 || !(limits[0] >= 0 && limits[0] <= limits[1])) {
    return fail(ErrorCode::kCorruptFile, "they are no two limits, the lower one first",
                config.where(kLimits));
  }
  space.step_low = static_cast<float>(limits[0]);
  space.step_high = static_cast<float>(limits[1]);
  return space;
}

}  // namespace rudder::model
