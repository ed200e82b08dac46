// An adapter that is accepted has pairs of the targets' shapes, ascending, finite, of a rank within
// the limits, in its own memory, with finite gains where it has any, and equal bytes give an equal
// key. Every error is of the file's
// making and names a file. Input: the length of the config (two bytes, little-endian), the config,
// the tensors.
#include <algorithm>
#include <array>
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

// Weights that DoRA scales; of the last target all zeros.
Result<lora::BaseTensors> fuzzed_base(const lora::Target& target) {
  static const std::array<float, 60> kOnes = [] {
    std::array<float, 60> ones;
    ones.fill(0.3f);
    return ones;
  }();
  static const std::array<float, 60> kZeros = {};
  const auto& values = target.name == kAdapterTargets.back().name ? kZeros : kOnes;
  return lora::BaseTensors{
      {const_cast<float*>(values.data()), tensor::DType::kF32, {target.out, target.in}}};
}

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
                           {.max_rank = kMaxRank, .hash_secret = {3, 5}}, fuzzed_base);
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
    RUDDER_CHECK(delta.gains.empty() || std::ssize(delta.gains) == target.out);
    RUDDER_CHECK(std::ranges::all_of(delta.gains, [](float gain) { return std::isfinite(gain); }));
    require_inside(adapter, delta.a);
    require_inside(adapter, delta.b);
  }
  RUDDER_CHECK(read()->adapter->key == adapter.key);
}

}  // namespace rudder::fuzz
