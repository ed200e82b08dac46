#include "rudder/exec/kv_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

// Layers that can share a block table.
struct Kind {
  int32_t window = 0;
  int64_t layer_bytes = 0;  // of one layer's block, without scales
  int64_t scale_bytes = 0;  // of the scales of its tokens
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t parts = 2;
  std::vector<size_t> layers;

  int64_t count() const { return static_cast<int64_t>(layers.size()); }
};

// Rows of head_dim numbers in a block of one layer.
int64_t rows_of(const model::KvGeometry& a, int32_t block_size) {
  return a.rows() * block_size;
}

int64_t layer_bytes(const model::KvGeometry& a, int32_t block_size, tensor::DType dtype) {
  return rows_of(a, block_size) * a.head_dim * static_cast<int64_t>(tensor::dtype_bytes(dtype));
}

// The fewest bytes of scales a block that have room for those of each group's layers, when each of
// these gets an equal share, on a 64-byte line. `bytes`: of a layer, by group.
int64_t scale_bytes_of(const step::KvGroups& groups, const std::vector<int64_t>& bytes) {
  constexpr int64_t kLine = 64;
  int64_t unit = kLine;
  int64_t most = 0;
  for (size_t g = 0; g < bytes.size(); ++g) {
    const int64_t layers = groups[g].layers;
    if (layers == 0) continue;
    unit = std::lcm(unit, layers * kLine);
    most = std::max(most, layers * bytes[g]);
  }
  return (most + unit - 1) / unit * unit;
}

// In the order of their first layers.
std::vector<Kind> kinds_of(const model::ModelSpec& spec, const KvLayoutAsk& ask) {
  std::vector<Kind> kinds;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const model::KvGeometry a = model::kv_geometry(spec.layers[i]);
    if (a.num_kv_heads == 0) continue;  // it keeps nothing
    const bool has_window = a.window > 0 && a.window + ask.lookback < ask.max_seq_len;
    const int32_t window = has_window ? a.window + ask.lookback : 0;
    const auto same = [&](const Kind& kind) {
      return kind.window == window && kind.num_kv_heads == a.num_kv_heads &&
             kind.head_dim == a.head_dim && kind.parts == a.parts;
    };
    auto kind = std::ranges::find_if(kinds, same);
    if (kind == kinds.end()) {
      kinds.push_back(
          {window,
           layer_bytes(a, ask.block_size, ask.kv.dtype),
           ask.kv.scales_tokens ? rows_of(a, ask.block_size) * int64_t{sizeof(float)} : 0,
           a.num_kv_heads,
           a.head_dim,
           a.parts,
           {}});
      kind = kinds.end() - 1;
    }
    kind->layers.push_back(i);
  }
  return kinds;
}

// Groups of `bytes` a block, without scales: as few as hold all layers of each kind. Nothing when
// there would be more than there may be.
std::optional<KvLayout> grouped(const std::vector<Kind>& kinds, int64_t bytes, size_t num_layers) {
  KvLayout layout;
  layout.layers.resize(num_layers);
  std::vector<step::KvGroup> groups;
  std::vector<int64_t> scale_bytes;
  for (const Kind& kind : kinds) {
    const int64_t layers_of_block = bytes / kind.layer_bytes;
    const auto first = static_cast<int64_t>(groups.size());
    const int64_t count = (kind.count() + layers_of_block - 1) / layers_of_block;
    if (first + count > step::kMaxKvGroups) return std::nullopt;
    groups.insert(groups.end(), static_cast<size_t>(count),
                  {.window = kind.window, .layers = static_cast<int32_t>(layers_of_block)});
    scale_bytes.resize(groups.size(), kind.scale_bytes);
    for (int64_t i = 0; i < kind.count(); ++i) {
      layout.layers[kind.layers[static_cast<size_t>(i)]] = {
          .group = static_cast<int32_t>(first + i / layers_of_block),
          .index = static_cast<int32_t>(i % layers_of_block)};
    }
  }
  layout.groups = step::KvGroups(groups);
  layout.scale_bytes = scale_bytes_of(layout.groups, scale_bytes);
  layout.block_bytes = bytes + layout.scale_bytes;
  return layout;
}

int64_t longest_bytes(const KvLayout& layout, const KvLayoutAsk& ask) {
  return layout.block_bytes * step::least_blocks(layout.groups, ask.block_size, ask.max_seq_len);
}

}  // namespace

Result<KvLayout> make_kv_layout(const model::ModelSpec& spec, const KvLayoutAsk& ask) {
  const std::vector<Kind> kinds = kinds_of(spec, ask);
  RUDDER_CHECK(!kinds.empty() && ask.block_size > 0 && ask.max_seq_len > 0);
  // A block is a whole number of layers of every kind.
  int64_t unit = 1;
  int64_t most = 0;
  for (const Kind& kind : kinds) {
    unit = std::lcm(unit, kind.layer_bytes);
    most = std::max(most, kind.count() * kind.layer_bytes);
  }
  std::optional<KvLayout> best;
  for (int64_t block_bytes = (most + unit - 1) / unit * unit; block_bytes > 0;
       block_bytes -= unit) {
    std::optional<KvLayout> layout = grouped(kinds, block_bytes, spec.layers.size());
    if (!layout) break;
    if (!best || longest_bytes(*layout, ask) < longest_bytes(*best, ask)) best = std::move(layout);
  }
  if (!best) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("layers keep keys and values in {} ways, at most {} can be served",
                            kinds.size(), step::kMaxKvGroups),
                "config.json");
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    best->layers[i] = best->layers[model::kv_layer_of(spec, i)];
  }
  return *std::move(best);
}

KvLayout stage_kv_layout(const KvLayout& whole, const model::Stage& stage) {
  if (stage.is_alone()) return whole;
  const auto layer_bytes_of = [&](const step::KvGroup& group) {
    return whole.number_bytes() / group.layers;
  };
  std::vector<int32_t> counts(static_cast<size_t>(whole.groups.size()));
  const auto first = whole.layers.begin() + stage.first_layer;
  KvLayout part;
  part.layers = {first, first + stage.num_layers};
  for (KvLayerIndex& at : part.layers) {
    if (at.group < 0) continue;
    at.index = counts[static_cast<size_t>(at.group)]++;
  }
  int64_t unit = 1;
  int64_t most = 1;
  for (size_t g = 0; g < counts.size(); ++g) {
    unit = std::lcm(unit, layer_bytes_of(whole.groups[g]));
    most = std::max(most, counts[g] * layer_bytes_of(whole.groups[g]));
  }
  const int64_t bytes = (most + unit - 1) / unit * unit;
  std::vector<step::KvGroup> groups(whole.groups.begin(), whole.groups.end());
  std::vector<int64_t> scale_bytes;
  for (step::KvGroup& group : groups) {
    scale_bytes.push_back(whole.scale_bytes / group.layers);
    group.layers = static_cast<int32_t>(bytes / layer_bytes_of(group));
  }
  part.groups = step::KvGroups(groups);
  part.scale_bytes = scale_bytes_of(part.groups, scale_bytes);
  part.block_bytes = bytes + part.scale_bytes;
  return part;
}

ops::KvLayer layer_kv(const KvLayout& layout, const model::KvGeometry& geometry, size_t layer,
                      int32_t block_size, const ops::KvFormat& format, const ops::View& pool) {
  if (geometry.num_kv_heads == 0) return {};
  const KvLayerIndex& at = layout.layers[layer];
  const int64_t num_blocks = pool.shape[0];
  ops::KvLayer kv;
  kv.block_size = block_size;
  kv.num_kv_heads = geometry.num_kv_heads;
  kv.head_dim = geometry.head_dim;
  kv.parts = geometry.parts;
  kv.group = at.group;
  const auto from_layer = [&](const ops::View& all) {
    return all.rows(at.index, all.num_rows() - at.index);
  };
  auto* const begin = static_cast<std::byte*>(pool.data);
  if (format.scales_tokens) {
    const int64_t layers = layout.groups[static_cast<size_t>(at.group)].layers;
    const int64_t width = layout.scale_bytes / layers / int64_t{sizeof(float)};
    kv.token_scales = from_layer({begin, tensor::DType::kF32, {num_blocks * layers, width}});
  }
  const int64_t bytes = layer_bytes(geometry, block_size, format.dtype);
  kv.storage = from_layer({begin + num_blocks * layout.scale_bytes,
                           format.dtype,
                           {num_blocks * layout.number_bytes() / bytes, geometry.parts,
                            geometry.num_kv_heads, int64_t{block_size} * geometry.head_dim}});
  return kv;
}

Result<KvMemory> allocate_kv(const KvLayout& layout, const model::ModelSpec& spec,
                             const step::Capacity& capacity, ops::Ops& ops) {
  KvMemory memory;
  RUDDER_TRY(memory.pool,
             ops.allocate(tensor::DType::kU8, {capacity.num_blocks, layout.block_bytes}));
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const model::LayerSpec& kept = spec.layers[model::kv_layer_of(spec, layer)];
    memory.layers.push_back(layer_kv(layout, model::kv_geometry(kept), layer, capacity.block_size,
                                     ops.kv_format(), memory.pool));
  }
  return memory;
}

}  // namespace rudder::exec
