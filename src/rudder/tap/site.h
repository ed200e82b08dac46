// Sites: the tensors of a layer that can be read and steered, with the names of TransformerLens. A
// point is a site of one layer; points are numbered, so that tables on the device can be indexed by
// them. Plain values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/dtype.h"

namespace rudder::tap {

enum class Site : uint8_t {
  kResidPre,   // the block's input
  kAttnIn,     // normed, with gain
  kAttnZ,      // the heads' outputs side by side, before the output projection
  kAttnOut,    // the attention branch as it is added to the residual, after a post-norm
  kResidMid,   // the residual between the branches
  kMlpIn,      // normed, with gain
  kMlpAct,     // neurons: act(gate) * up
  kMlpOut,     // the MLP branch as it is added
  kResidPost,  // the block's output
  kFinalNorm,  // of the last layer: the input of the output head
};
inline constexpr int32_t kNumSites = 10;

// Sets of sites (Geometry::sites).
constexpr uint16_t site_bit(Site site) {
  return static_cast<uint16_t>(1u << static_cast<unsigned>(site));
}
inline constexpr uint16_t kEverySite = (1u << kNumSites) - 1;
constexpr uint16_t every_site_but(Site site) {
  return static_cast<uint16_t>(kEverySite & ~site_bit(site));
}

// "resid_pre", "attn_in", ...
std::string_view site_name(Site site);

struct Point {
  int32_t layer = 0;
  Site site = Site::kResidPost;
  bool operator==(const Point&) const = default;
  // Points of a lower index are reached first by a token.
  int32_t index() const { return layer * kNumSites + static_cast<int32_t>(site); }
};

// A site as a client writes it: the canonical names, the aliases pre_attn, post_attn, post_mlp and
// post_block, and forms that carry a layer: "blocks.10.hook_resid_post", "resid_post.10".
// A name that is another tensor in TransformerLens ("blocks.10.hook_mlp_in") is refused with the
// right one.
struct SiteRef {
  Site site = Site::kResidPost;
  int32_t layer = -1;  // -1: the text names none
};
Result<SiteRef> parse_site(std::string_view text);  // kInvalidArgument, lists the names it takes

// The heads of a layer's mixer. Its row at attn_z has them side by side.
struct Heads {
  int32_t count = 0;
  int32_t dim = 0;  // elements of one
  bool operator==(const Heads&) const = default;
  int32_t width() const { return count * dim; }
};

// The facts about a model that taps depend on.
struct Geometry {
  int32_t num_layers = 0;
  int32_t hidden = 0;
  std::vector<int32_t> mlp_width;              // [num_layers]
  std::vector<Heads> heads = {};               // [num_layers]
  std::vector<uint16_t> sites;                 // [num_layers] bit 1 << Site: the layer has it
  tensor::DType dtype = tensor::DType::kBF16;  // of activations: what is captured
  // Likewise, of every layer: each rank of a group has a part of such a row, and this backend does
  // not put them together. No point of such a site is in `sites`.
  uint16_t divided_sites = 0;
  // Likewise: this backend does not tap them.
  uint16_t untapped_sites = 0;

  bool empty() const { return num_layers == 0; }
  int32_t num_points() const { return num_layers * kNumSites; }
  bool has(Point point) const;
  // Why a site can be neither read nor steered at any layer; empty where it can at some.
  std::string refusal(Site site) const;
  int32_t width(Point point) const;  // elements of the row at a point that the model has
  int32_t widest() const;            // of them all
  // An Error names the layer or the site that the model does not have.
  Result<void> check(Point point) const;
};

}  // namespace rudder::tap
