#include "rudder/tap/site.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "rudder/tap/passage.h"

namespace rudder::tap {
namespace {

constexpr std::array<std::string_view, kNumSites> kNames = {
    "resid_pre",         "attn_in",          "attn_z",     "attn_out",
    "mhc_attn_post_mix", "mhc_attn_res_mix", "resid_mid",  "mlp_in",
    "router_logits",     "routed_experts",   "mlp_act",    "mlp_out",
    "mhc_ffn_post_mix",  "mhc_ffn_res_mix",  "resid_post", "final_norm"};

struct Alias {
  std::string_view name;
  Site site;
};
constexpr std::array<Alias, 7> kAliases = {{{"pre_attn", Site::kResidPre},
                                            {"post_attn", Site::kResidMid},
                                            {"post_mlp", Site::kResidPost},
                                            {"post_block", Site::kResidPost},
                                            {"mhc_streams_pre_attn", Site::kResidPre},
                                            {"mhc_streams_pre_mlp", Site::kResidMid},
                                            {"mhc_streams_final", Site::kResidPost}}};

// Names of TransformerLens below "blocks.L." that are no "hook_" and the name of a site.
constexpr std::array<Alias, 4> kHookAliases = {{{"attn.hook_z", Site::kAttnZ},
                                                {"mlp.hook_in", Site::kMlpIn},
                                                {"mlp.hook_post", Site::kMlpAct},
                                                {"mlp.hook_expert_indices", Site::kRoutedExperts}}};

// Names that mean another tensor there than the site that sounds like it.
struct Misnomer {
  std::string_view name;
  std::string_view meaning;
};
constexpr std::array<Misnomer, 8> kMisnomers = {{
    {"attn.hook_pattern",
     "the weights of attention, which are no site: `patterns` of the capture consumer response "
     "gives them"},
    {"attn.hook_attn_scores",
     "the scores in front of the softmax: `patterns` of the capture consumer response gives what "
     "the softmax makes of them"},
    {"hook_attn_in",
     "the residual in front of the attention's norm: resid_pre; what the norm gives is attn_in"},
    {"hook_mlp_in",
     "the residual in front of the MLP's norm: resid_mid; what the norm gives is mlp.hook_in, here "
     "mlp_in"},
    {"mlp.hook_expert_weights",
     "what the router's softmax makes of the logits; in front of it they are router_logits"},
    {"ln1.hook_normalized", "the row without the norm's gain; with it, it is attn_in"},
    {"ln2.hook_normalized", "the row without the norm's gain; with it, it is mlp_in"},
    {"ln_final.hook_normalized", "the row without the norm's gain; with it, it is final_norm"},
}};

const Site* find_name(std::string_view name) {
  static constexpr auto kSites = [] {
    std::array<Site, kNumSites> sites = {};
    for (size_t i = 0; i < sites.size(); ++i) sites[i] = static_cast<Site>(i);
    return sites;
  }();
  const auto* name_at = std::ranges::find(kNames, name);
  if (name_at != kNames.end()) return &kSites[static_cast<size_t>(name_at - kNames.begin())];
  const auto* alias = std::ranges::find(kAliases, name, &Alias::name);
  return alias == kAliases.end() ? nullptr : &alias->site;
}

// "hook_resid_post", "mlp.hook_post": what stands behind the number of a block.
const Site* find_hook(std::string_view name, std::string_view prefix) {
  const auto* alias = std::ranges::find(kHookAliases, name, &Alias::name);
  if (alias != kHookAliases.end()) return &alias->site;
  return name.starts_with(prefix) ? find_name(name.substr(prefix.size())) : nullptr;
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

std::string_view residual_kind_name(ResidualKind kind) {
  static constexpr std::array<std::string_view, 3> kKinds = {"one_stream", "mixed_streams",
                                                             "block_sums"};
  return kKinds[static_cast<size_t>(kind)];
}

// A block of layers is finished by the first layer of the next one, the embedding by the first.
int32_t ResidualForm::streams_at(Point point) const {
  if (kind != ResidualKind::kBlockSums) return streams;
  const int32_t begun = point.layer + (point.site == Site::kResidPre ? 0 : 1);
  return 1 + (begun + block_layers - 1) / block_layers;
}

std::string ResidualForm::stream_name(int32_t stream) const {
  if (kind != ResidualKind::kBlockSums) return fmt::format("stream {}", stream);
  return stream == 0 ? "prefix" : fmt::format("block {}", stream - 1);
}

Result<SiteRef> parse_site(std::string_view text) {
  if (const Site* site = find_name(text)) return SiteRef{*site, -1};
  for (const Misnomer& misnomer : kMisnomers) {
    if (!text.ends_with(misnomer.name)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is, in TransformerLens, {}", text, misnomer.meaning));
  }
  constexpr std::string_view kBlocks = "blocks.";
  constexpr std::string_view kHook = "hook_";
  if (text.starts_with(kBlocks)) {
    const std::string_view rest = text.substr(kBlocks.size());
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos) return unknown_site(text);
    const int32_t layer = parse_layer(rest.substr(0, dot));
    const Site* site = find_hook(rest.substr(dot + 1), kHook);
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

Result<SiteRef> parse_op_site(std::string_view text) {
  RUDDER_TRY(const SiteRef ref, parse_site(text));
  if (takes_ops(ref.site)) return ref;
  const bool is_mlp = ref.site == Site::kMlpPostMix || ref.site == Site::kMlpResMix;
  const std::string instead =
      is_mix(ref.site)
          ? fmt::format("it is made of {}, all streams of it",
                        site_name(is_mlp ? Site::kResidMid : Site::kResidPre))
          : fmt::format("{} is what a router chooses by", site_name(Site::kRouterLogits));
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is captured, and no op reads or changes it: {}", site_name(ref.site),
                          instead));
}

bool Geometry::has(Point point) const {
  if (point.layer < 0 || point.layer >= num_layers) return false;
  const auto mask = static_cast<unsigned>(sites[static_cast<size_t>(point.layer)]);
  return ((mask >> static_cast<unsigned>(point.site)) & 1U) != 0;
}

bool Geometry::has_experts(int32_t layer) const {
  return !routing.empty() && routing[static_cast<size_t>(layer)].experts > 0;
}

void Geometry::leave_out_routers() {
  for (uint16_t& of_layer : sites) of_layer = static_cast<uint16_t>(of_layer & ~kRouterSites);
}

int32_t Geometry::widest() const {
  int32_t widest = residual_width();
  for (const int32_t width : mlp_width) widest = std::max(widest, width);
  for (const Heads& of_layer : heads) widest = std::max(widest, of_layer.width());
  for (const Routing& of_layer : routing) widest = std::max(widest, of_layer.experts);
  return widest;
}

int32_t Geometry::pattern_heads(int32_t layer) const {
  const auto at = static_cast<size_t>(layer);
  return weighing.empty() ? heads[at].count : weighing[at];
}

int32_t Geometry::width(Point point) const {
  return parts(point).width();
}

int64_t Geometry::row_bytes(Point point) const {
  return int64_t{width(point)} * static_cast<int64_t>(tensor::dtype_bytes(dtype_at(point)));
}

RowParts Geometry::parts(Point point) const {
  const auto layer = static_cast<size_t>(point.layer);
  if (point.site == Site::kAttnZ) return heads[layer];
  if (is_residual(point.site)) return {residual.streams, hidden};
  if (is_mix(point.site)) {
    const bool is_post = (site_bit(point.site) & kPostMixSites) != 0;
    return {residual.streams, is_post ? 1 : residual.streams};
  }
  const bool routes = point.site == Site::kRouterLogits || point.site == Site::kRoutedExperts;
  if (routes && !has_experts(point.layer)) return {1, 0};
  if (point.site == Site::kRouterLogits) return {1, routing[layer].experts};
  if (point.site == Site::kRoutedExperts) return {1, routing[layer].chosen};
  return {1, point.site == Site::kMlpAct ? mlp_width[layer] : hidden};
}

std::string Geometry::fits(int32_t layer, int32_t width_of_it, bool by_stream) const {
  std::vector<std::string_view> whole;
  std::vector<std::string_view> stream;
  for (int32_t i = 0; i < kNumSites; ++i) {
    const Point point{layer, static_cast<Site>(i)};
    if (!has(point) || !takes_ops(point.site)) continue;
    if (width(point) == width_of_it) {
      whole.push_back(site_name(point.site));
    } else if (by_stream && is_residual(point.site) && width_of_it == hidden) {
      stream.push_back(site_name(point.site));
    }
  }
  if (whole.empty() && stream.empty()) {
    return fmt::format("no point of this layer has {}", width_of_it);
  }
  std::string text = fmt::format("{} elements fit {}", width_of_it, fmt::join(whole, ", "));
  if (stream.empty()) return text;
  return fmt::format("{}{}with \"stream\" {}", text, whole.empty() ? "" : ", and ",
                     fmt::join(stream, ", "));
}

Result<void> Geometry::check(Point point) const {
  if (point.layer < 0 || point.layer >= num_layers) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} of a model with {} layers", point.layer, num_layers));
  }
  if (has(point)) return {};
  std::string_view why;
  if (point.site == Site::kFinalNorm) why = " (only the last has)";
  if (is_mix(point.site)) why = ": no branch of it writes streams by such numbers of each token";
  if (passage(point.site) == kRouter) {
    why = has_experts(point.layer) ? ": the backend of this server does not tap its router"
                                   : ": it is no mixture of experts";
  }
  return fail(ErrorCode::kInvalidArgument, fmt::format("layer {} of this model has no {}{}",
                                                       point.layer, site_name(point.site), why));
}

}  // namespace rudder::tap
