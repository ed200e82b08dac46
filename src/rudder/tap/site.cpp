#include "rudder/tap/site.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace rudder::tap {
namespace {

constexpr std::array<std::string_view, kNumSites> kNames = {
    "resid_pre", "attn_in", "attn_out",   "resid_mid", "mlp_in",
    "mlp_act",   "mlp_out", "resid_post", "final_norm"};

struct Alias {
  std::string_view name;
  Site site;
};
constexpr std::array<Alias, 4> kAliases = {{{"pre_attn", Site::kResidPre},
                                            {"post_attn", Site::kResidMid},
                                            {"post_mlp", Site::kResidPost},
                                            {"post_block", Site::kResidPost}}};

const Site* find_name(std::string_view name) {
  static constexpr std::array<Site, kNumSites> kSites = {
      Site::kResidPre, Site::kAttnIn, Site::kAttnOut,   Site::kResidMid, Site::kMlpIn,
      Site::kMlpAct,   Site::kMlpOut, Site::kResidPost, Site::kFinalNorm};
  const auto* name_at = std::ranges::find(kNames, name);
  if (name_at != kNames.end()) return &kSites[static_cast<size_t>(name_at - kNames.begin())];
  const auto* alias = std::ranges::find(kAliases, name, &Alias::name);
  return alias == kAliases.end() ? nullptr : &alias->site;
}

// A whole number without sign and without leading zeros; -1 for anything else.
int32_t parse_layer(std::string_view text) {
  int32_t layer = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  const bool plain = !text.empty() && text[0] != '-' && (text.size() == 1 || text[0] != '0');
  return whole && plain ? layer : -1;
}

tl::unexpected<Error> unknown_site(std::string_view text) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown site '{}': one of {}", text, fmt::join(kNames, ", ")));
}

}  // namespace

std::string_view site_name(Site site) {
  return kNames[static_cast<size_t>(site)];
}

Result<SiteRef> parse_site(std::string_view text) {
  if (const Site* site = find_name(text)) return SiteRef{*site, -1};
  constexpr std::string_view kBlocks = "blocks.";
  constexpr std::string_view kHook = ".hook_";
  if (text.starts_with(kBlocks)) {
    const std::string_view rest = text.substr(kBlocks.size());
    const size_t hook = rest.find(kHook);
    if (hook == std::string_view::npos) return unknown_site(text);
    const int32_t layer = parse_layer(rest.substr(0, hook));
    const Site* site = find_name(rest.substr(hook + kHook.size()));
    if (layer < 0 || site == nullptr) return unknown_site(text);
    return SiteRef{*site, layer};
  }
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return unknown_site(text);
  const int32_t layer = parse_layer(text.substr(dot + 1));
  const Site* site = find_name(text.substr(0, dot));
  if (layer < 0 || site == nullptr) return unknown_site(text);
  return SiteRef{*site, layer};
}

bool Geometry::has(Point point) const {
  if (point.layer < 0 || point.layer >= num_layers) return false;
  const auto mask = static_cast<unsigned>(sites[static_cast<size_t>(point.layer)]);
  return ((mask >> static_cast<unsigned>(point.site)) & 1U) != 0;
}

int32_t Geometry::width(Point point) const {
  return point.site == Site::kMlpAct ? mlp_width[static_cast<size_t>(point.layer)] : hidden;
}

Result<void> Geometry::check(Point point) const {
  if (point.layer < 0 || point.layer >= num_layers) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} of a model with {} layers", point.layer, num_layers));
  }
  if (!has(point)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("layer {} of this model has no {}{}", point.layer, site_name(point.site),
                    point.site == Site::kFinalNorm ? " (only the last has)" : ""));
  }
  return {};
}

}  // namespace rudder::tap
