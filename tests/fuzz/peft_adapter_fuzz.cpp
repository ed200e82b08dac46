// An adapter that is accepted has pairs of the targets' shapes, ascending, finite, of a rank within
// the limits, in its own memory, and equal bytes give an equal key. Every error is of the file's
// making and names a file. Input: the length of the config (two bytes, little-endian), the config,
// the tensors.
#include <cmath>

#include "require.h"
#include "rudder/lora/peft_adapter.h"

namespace rudder::fuzz {
namespace {

const lora::Targets kAdapterTargets = {{"model.layers.0.self_attn.q_proj", 6, 10},
                                       {"model.layers.0.self_attn.k_proj", 6, 4},
                                       {"model.layers.0.mlp.down_proj", 7, 6},
                                       {"model.layers.1.self_attn.q_proj", 6, 10}};
constexpr int32_t kMaxRank = 8;

void require_inside(const lora::Adapter& adapter, const tensor::View& matrix) {
  const auto* const begin = static_cast<const std::byte*>(matrix.data);
  RUDDER_CHECK(begin >= adapter.memory.data() &&
               begin + matrix.bytes() <= adapter.memory.data() + adapter.memory.size());
}

}  // namespace

void fuzz_peft_adapter(std::string_view input) {
  if (input.size() < 2) return;
  const size_t length =
      static_cast<unsigned char>(input[0]) + size_t{256} * static_cast<unsigned char>(input[1]);
  input.remove_prefix(2);
  const std::string_view config = input.substr(0, length);
  const std::string_view tensors = input.substr(config.size());
  const auto read = [&] {
    return lora::read_peft({std::as_bytes(std::span(config)), "config"},
                           {std::as_bytes(std::span(tensors)), "tensors"}, kAdapterTargets,
                           {.max_rank = kMaxRank, .hash_secret = {3, 5}});
  };
  const auto first = read();
  if (!first) {
    const Error& error = first.error();
    RUDDER_CHECK(error.code == ErrorCode::kCorruptFile || error.code == ErrorCode::kUnsupported ||
                     error.code == ErrorCode::kInvalidArgument,
                 "{}", error.to_string());
    RUDDER_CHECK(error.where.starts_with("config") || error.where.starts_with("tensors"), "{}",
                 error.to_string());
    return;
  }
  const lora::Adapter& adapter = *first->adapter;
  RUDDER_CHECK(!adapter.deltas.empty() && adapter.max_rank <= kMaxRank);
  int32_t last = -1;
  for (const lora::Delta& delta : adapter.deltas) {
    RUDDER_CHECK(delta.target > last && std::cmp_less(delta.target, kAdapterTargets.size()));
    last = delta.target;
    const lora::Target& target = kAdapterTargets[static_cast<size_t>(delta.target)];
    RUDDER_CHECK(delta.rank() > 0 && delta.rank() <= adapter.max_rank &&
                 delta.a.shape == tensor::Shape({delta.rank(), target.in}) &&
                 delta.b.shape == tensor::Shape({target.out, delta.rank()}));
    RUDDER_CHECK(std::isfinite(delta.scale));
    require_inside(adapter, delta.a);
    require_inside(adapter, delta.b);
  }
  RUDDER_CHECK(read()->adapter->key == adapter.key);
}

}  // namespace rudder::fuzz
