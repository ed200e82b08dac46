#include "rudder/model/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rudder/base/check.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

constexpr const char* kWhere = "tensor-parallel-size";

// By heads, with the groups that they read.
Result<void> shard_space(StateSpace& space, size_t index, ops::Rank rank) {
  const int32_t heads = space.heads / rank.count;
  const int32_t each = space.heads / space.groups;
  const bool fits = heads % each == 0 || (heads > 0 && each % heads == 0);
  if (space.heads % rank.count != 0 || !fits) {
    return indivisible(
        fmt::format("the {} heads, in {} groups, of layer {}", space.heads, space.groups, index),
        rank);
  }
  if (space.norm_runs % rank.count != 0) {
    return indivisible(fmt::format("the norm of layer {} over all {} channels", index,
                                   space.width() / space.norm_runs),
                       rank);
  }
  space.heads = heads;
  space.groups = std::max(heads / each, 1);
  space.norm_runs /= rank.count;
  return {};
}

Result<void> shard_layer(LayerSpec& layer, size_t index, ops::Rank rank) {
  if (Attention* const attention = attention_of(layer)) {
    if (attention->num_heads % rank.count != 0) {
      return indivisible(fmt::format("the {} heads of layer {}", attention->num_heads, index),
                         rank);
    }
    const int32_t kv_heads = attention->num_kv_heads;
    if (kv_heads % rank.count != 0 && rank.count % kv_heads != 0) {
      return indivisible(fmt::format("the {} KV heads of layer {}", kv_heads, index), rank);
    }
    const HeadShares heads = head_shares(*attention, rank);
    attention->num_heads = static_cast<int32_t>(heads.q.count);
    attention->num_kv_heads = static_cast<int32_t>(heads.kv.count);
  }
  if (LatentAttention* const latent = latent_of(layer)) {
    int32_t& heads = latent->shape.num_heads;
    if (heads % rank.count != 0) {
      return indivisible(fmt::format("the {} heads of layer {}", heads, index), rank);
    }
    heads /= rank.count;
  }
  if (GatedDelta* const delta = std::get_if<GatedDelta>(&layer.mixer)) {
    if (delta->key_heads % rank.count != 0) {
      return indivisible(fmt::format("the {} key heads of layer {}", delta->key_heads, index),
                         rank);
    }
    delta->key_heads /= rank.count;
    delta->value_heads /= rank.count;
  }
  if (ShortConv* const conv = std::get_if<ShortConv>(&layer.mixer)) {
    if (conv->width % rank.count != 0) {
      return indivisible(fmt::format("the {} channels of layer {}", conv->width, index), rank);
    }
    conv->width /= rank.count;
  }
  if (StateSpace* const space = space_of(layer)) {
    RUDDER_TRY_VOID(shard_space(*space, index, rank));
  }
  if (CustomMixer* const custom = std::get_if<CustomMixer>(&layer.mixer)) {
    RUDDER_TRY(custom->kind, custom->kind->share(rank));
  }
  if (GatedMlp* const mlp = gated_mlp_of(layer)) {
    if (mlp->width % rank.count != 0) {
      return indivisible(fmt::format("the {} neurons of layer {}", mlp->width, index), rank);
    }
    mlp->width /= rank.count;
  }
  if (Experts* const mlp = experts_of(layer)) {
    if (mlp->by_expert && mlp->count % rank.count != 0) {
      return indivisible(fmt::format("the {} experts of layer {}", mlp->count, index), rank);
    }
    if (mlp->by_expert) {
      mlp->first = static_cast<int32_t>(ops::equal_share(mlp->count, rank).begin);
    }
    for (int32_t* const width : {&mlp->width, &mlp->shared_width}) {
      if (mlp->by_expert && width == &mlp->width) continue;
      if (*width % rank.count != 0) {
        return indivisible(fmt::format("the {} neurons of an expert of layer {}", *width, index),
                           rank);
      }
      *width /= rank.count;
    }
  }
  return {};
}

// Rows [share.begin, + share.count) of a view of rank 1 or 2; an empty view stays empty.
ops::View rows_of(const ops::View& view, ops::Share share) {
  return view.empty() ? view : view.rows(share.begin, share.count);
}

// The units of `size` elements that a share has: it begins with one, and its last may be short.
ops::Share shares_of(ops::Share share, int64_t size) {
  return {share.begin / size, (share.count + size - 1) / size};
}

// The columns of a matrix, copied.
ops::View columns_of(const ops::View& matrix, ops::Share share,
                     std::vector<std::vector<std::byte>>& memory) {
  const size_t element = tensor::dtype_bytes(matrix.dtype);
  const size_t stored_bytes = static_cast<size_t>(matrix.shape[1]) * element;
  const size_t row_bytes = static_cast<size_t>(share.count) * element;
  const auto num_rows = static_cast<size_t>(matrix.shape[0]);
  std::vector<std::byte>& copy = memory.emplace_back(num_rows * row_bytes);
  const auto* from =
      static_cast<const std::byte*>(matrix.data) + static_cast<size_t>(share.begin) * element;
  for (size_t row = 0; row < num_rows; ++row) {
    std::memcpy(copy.data() + row * row_bytes, from + row * stored_bytes, row_bytes);
  }
  return {copy.data(), matrix.dtype, {matrix.shape[0], share.count}};
}

}  // namespace

tl::unexpected<Error> indivisible(const std::string& what, ops::Rank rank) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} cannot be divided among {} ranks", what, rank.count), kWhere);
}

HeadShares head_shares(const Attention& attention, ops::Rank rank) {
  const ops::Share q = ops::equal_share(attention.num_heads, rank);
  const int64_t kv_heads = attention.num_kv_heads;
  if (kv_heads % rank.count == 0) return {q, ops::equal_share(kv_heads, rank)};
  const int64_t ranks_a_head = rank.count / kv_heads;
  return {q, {rank.index / ranks_a_head, 1}};
}

AttentionExtents attention_extents(const Attention& attention, ops::Rank rank) {
  const HeadShares shares = head_shares(attention, rank);
  const int64_t dim = attention.head_dim;
  const auto elements = [&](const Extent& of_heads) {
    return Extent{of_heads.stored * dim, {of_heads.share.begin * dim, of_heads.count() * dim}};
  };
  const Extent heads{attention.num_heads, shares.q};
  const Extent kv_heads{attention.num_kv_heads, shares.kv};
  return {heads, kv_heads, elements(heads), elements(kv_heads)};
}

bool divide_by_expert(ModelSpec& whole) {
  bool has_experts = false;
  for (LayerSpec& layer : whole.layers) {
    Experts* const mlp = experts_of(layer);
    if (mlp != nullptr) mlp->by_expert = has_experts = true;
  }
  return has_experts;
}

Result<ModelSpec> shard_spec(const ModelSpec& whole, ops::Rank rank) {
  ModelSpec spec = whole;
  if (rank.is_alone()) return spec;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    RUDDER_TRY_VOID(shard_layer(spec.layers[i], i, rank));
  }
  const ops::Rank last{rank.count - 1, rank.count};
  if (ops::vocab_share(spec.vocab, last).count == 0) {
    return indivisible(fmt::format("the vocabulary of {} tokens", spec.vocab), rank);
  }
  spec.tied_head = false;
  return spec;
}

Result<void> cut_part(const ops::LinearPart& stored, const LinearModule& module, size_t index,
                      std::vector<std::vector<std::byte>>& memory,
                      std::vector<ops::LinearPart>& parts) {
  const ops::WeightFormat& format = stored.format;
  const auto refused = [&](Error error) {
    error.where = fmt::format("{}: module '{}'", kWhere, module.parts[index].name);
    return tl::unexpected(std::move(error));
  };
  if (const auto fits = ops::check_inputs(format, module.in.share, module.in.stored); !fits) {
    return refused(fits.error());
  }
  int64_t first = 0;  // row of the stored tensor
  for (const Extent& rows : module.parts[index].rows) {
    const ops::Share share{first + rows.share.begin, rows.share.count};
    first += rows.stored;
    if (share.count == 0) continue;  // of another part
    if (const auto fits = ops::check_rows(format, share, stored.out()); !fits) {
      return refused(fits.error());
    }
    const ops::Share blocks = shares_of(share, format.block_rows);
    ops::LinearPart part = stored;
    part.codes = rows_of(stored.codes, share);
    part.scales = rows_of(stored.scales, blocks);
    part.offsets = rows_of(stored.offsets, blocks);
    part.use = module.use;
    part.bias = module.adds_bias() ? rows_of(stored.bias, share) : ops::View{};
    if (!module.in.is_whole()) {
      part.codes = columns_of(
          part.codes, shares_of(module.in.share, ops::codes_per_element(format.codes)), memory);
      if (format.group > 0) {
        const ops::Share groups = shares_of(module.in.share, format.group);
        part.scales = columns_of(part.scales, groups, memory);
        if (!part.offsets.empty()) part.offsets = columns_of(part.offsets, groups, memory);
      }
    }
    parts.push_back(part);
  }
  RUDDER_CHECK(first == stored.out(), "'{}': {} rows, not {}", module.parts[index].name,
               stored.out(), first);
  return {};
}

}  // namespace rudder::model
