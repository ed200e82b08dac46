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
  kResidPre,       // the block's input
  kAttnIn,         // normed, with gain
  kAttnZ,          // the heads' outputs side by side, before the output projection
  kAttnOut,        // the attention branch as it is added to the residual, after a post-norm
  kAttnPostMix,    // of streams: what each takes of the branch, a number a stream
  kAttnResMix,     // likewise of the others: c_ij at i * n + j, stream j's part of stream i
  kResidMid,       // the residual between the branches
  kMlpIn,          // normed, with gain
  kRouterLogits,   // of a mixture of experts: one logit for each
  kRoutedExperts,  // those that the router chose, in the order of its choice
  kMlpAct,         // neurons: act(gate) * up
  kMlpOut,         // the MLP branch as it is added
  kMlpPostMix,     // these two as those of attention
  kMlpResMix,
  kResidPost,  // the block's output
  kFinalNorm,  // of the last layer: the input of the output head
};
inline constexpr int32_t kNumSites = 16;

// Sets of sites (Geometry::sites).
constexpr uint16_t site_bit(Site site) {
  return static_cast<uint16_t>(1u << static_cast<unsigned>(site));
}
inline constexpr uint16_t kRouterSites =
    site_bit(Site::kRouterLogits) | site_bit(Site::kRoutedExperts);
inline constexpr uint16_t kPostMixSites =
    site_bit(Site::kAttnPostMix) | site_bit(Site::kMlpPostMix);
inline constexpr uint16_t kResMixSites = site_bit(Site::kAttnResMix) | site_bit(Site::kMlpResMix);
// Those that the last layer of a model of one stream, without experts, can have.
inline constexpr uint16_t kDenseSites =
    ((1u << kNumSites) - 1) & ~(kRouterSites | kPostMixSites | kResMixSites);
constexpr uint16_t dense_sites_but(Site site) {
  return static_cast<uint16_t>(kDenseSites & ~site_bit(site));
}

// Whether the site is the residual itself; most steering adds to it.
constexpr bool is_residual(Site site) {
  return site == Site::kResidPre || site == Site::kResidMid || site == Site::kResidPost;
}

// Whether the site is numbers that a token's streams are written by.
constexpr bool is_mix(Site site) {
  return (site_bit(site) & (kPostMixSites | kResMixSites)) != 0;
}

// No op changes the other ones: they are captured alone.
constexpr bool takes_ops(Site site) {
  return site != Site::kRoutedExperts && !is_mix(site);
}

// Of a captured row there, where activations are of the dtype `act`.
constexpr tensor::DType row_dtype(Site site, tensor::DType act) {
  if (site == Site::kRouterLogits || is_mix(site)) return tensor::DType::kF32;
  return site == Site::kRoutedExperts ? tensor::DType::kI16 : act;
}

// "resid_pre", "attn_in", ...
std::string_view site_name(Site site);

struct Point {
  int32_t layer = 0;
  Site site = Site::kResidPost;
  bool operator==(const Point&) const = default;
  static constexpr Point at(int32_t index) {
    return {index / kNumSites, static_cast<Site>(index % kNumSites)};
  }
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
// Of a site that ops work at or read: kInvalidArgument, too, where no op does (takes_ops).
Result<SiteRef> parse_op_site(std::string_view text);

// Parts of equal size that a row has side by side: the heads of attn_z, the streams of a residual,
// the numbers of each stream.
struct RowParts {
  int32_t count = 0;
  int32_t dim = 0;  // elements of one
  bool operator==(const RowParts&) const = default;
  int32_t width() const { return count * dim; }
};
// The heads of a layer's mixer.
using Heads = RowParts;

// The kinds of residual that a model may have (model/residual.h), as clients are told of them.
enum class ResidualKind : uint8_t {
  kOneStream,     // a row of the model's width
  kMixedStreams,  // several of them, which every branch reads and writes
  kBlockSums,     // the sum of the block of layers at hand, then those of finished blocks
};
// "one_stream", "mixed_streams", "block_sums".
std::string_view residual_kind_name(ResidualKind kind);

// A row at a residual point: so many rows of the model's width, side by side.
struct ResidualForm {
  ResidualKind kind = ResidualKind::kOneStream;
  int32_t streams = 1;
  int32_t block_layers = 0;  // of kBlockSums: layers of a block
  bool collapses = true;     // a row alone says what the model's end would read of it
  bool operator==(const ResidualForm&) const = default;
  // Of the rows those that the model has made at a residual point, which are the first; the others
  // are 0, and no branch reads them before it has.
  int32_t streams_at(Point point) const;
  // "stream 1"; of kBlockSums "prefix", "block 0".
  std::string stream_name(int32_t stream) const;
};

// What chooses the experts of a layer that is a mixture of them.
struct Routing {
  int32_t experts = 0;
  int32_t chosen = 0;  // for a token
  // It chooses by scores of its own, not by the logits: sigmoids and a correction.
  bool by_scores = false;
  bool operator==(const Routing&) const = default;
};

// The facts about a model that taps depend on.
struct Geometry {
  int32_t num_layers = 0;
  int32_t hidden = 0;
  std::vector<int32_t> mlp_width;              // [num_layers]
  std::vector<Heads> heads = {};               // [num_layers]
  std::vector<uint16_t> sites;                 // [num_layers] bit 1 << Site: the layer has it
  tensor::DType dtype = tensor::DType::kBF16;  // of activations, in which most sites are captured
  ResidualForm residual = {};
  std::vector<int32_t> weighing = {};  // [num_layers] of heads, those that weigh keys; empty: all
  std::vector<Routing> routing = {};   // [num_layers] without experts where there is none; or empty

  bool empty() const { return num_layers == 0; }
  int32_t num_points() const { return num_layers * kNumSites; }
  int32_t residual_width() const { return hidden * residual.streams; }
  bool has(Point point) const;
  bool has_experts(int32_t layer) const;
  // Without the points of routers, for a backend that does not tap them (ops::RouterTapOps).
  void leave_out_routers();
  tensor::DType dtype_at(Point point) const { return row_dtype(point.site, dtype); }
  int32_t pattern_heads(int32_t layer) const;  // that have attention patterns
  int32_t width(Point point) const;            // elements of the row at a point that the model has
  int32_t widest() const;                      // of them all
  int64_t row_bytes(Point point) const;        // of a captured row at such a point
  // What the row at a point that the model has consists of; one part where nothing divides it.
  RowParts parts(Point point) const;
  // Which points of the layer vectors of so many elements are for: "4 elements fit attn_in, ...".
  // `by_stream`: who asks can name a stream.
  std::string fits(int32_t layer, int32_t width, bool by_stream) const;
  // An Error names the layer or the site that the model does not have.
  Result<void> check(Point point) const;
};

}  // namespace rudder::tap
