#include "rudder/model/residual.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/model/tensors.h"

namespace rudder::model {

void list_tensors(const OneStream& /*residual*/, const ResidualLayer& /*layer*/,
                  OneStream::Weights* /*weights*/, LayerTensors& /*out*/) {}

void list_tensors(const MixedStreams& residual, const ResidualLayer& layer,
                  MixedStreams::Weights* weights, LayerTensors& out) {
  using Site = MixedStreams::Site;
  using Weights = MixedStreams::Weights;
  const int64_t count = residual.count;
  const auto add_site = [&](const std::string& name, Site Weights::*member) {
    Site* const site = target_in(weights, member);
    out.add_vector(name + ".read", count, target_in(site, &Site::read));
    out.add_vector(name + ".write", count, target_in(site, &Site::write));
    out.add_vector(name + ".mix", count * count, target_in(site, &Site::mix));
  };
  add_site("mixer_streams", &Weights::mixer);
  add_site("mlp_streams", &Weights::mlp);
  if (layer.is_last) out.add_vector("end_streams", count, target_in(weights, &Weights::end));
}

void list_tensors(const HyperConnections& residual, const ResidualLayer& layer,
                  HyperConnections::Weights* weights, LayerTensors& out) {
  using Weights = HyperConnections::Weights;
  const ops::StreamRule& rule = residual.rule;
  const auto add_map = [&](const std::string& name, int64_t rows, int64_t scales,
                           ops::StreamMap Weights::*member) {
    ops::StreamMap* const map = target_in(weights, member);
    out.add_matrix(name + "_fn", rows, rule.streams * layer.hidden,
                   target_in(map, &ops::StreamMap::fn));
    out.add_vector(name + "_base", rows, target_in(map, &ops::StreamMap::base));
    out.add_vector(name + "_scale", scales, target_in(map, &ops::StreamMap::scale));
  };
  const int64_t scales = rule.iterations > 0 ? 3 : 2;
  add_map(std::string(layer.hyper.mixer), rule.rows(), scales, &Weights::mixer);
  add_map(std::string(layer.hyper.mlp), rule.rows(), scales, &Weights::mlp);
  if (!layer.is_last || residual.ends_in_mean || residual.is_delayed) return;
  std::string of_layer = std::exchange(out.prefix, std::string(layer.model_prefix));
  add_map(std::string(layer.hyper.end), rule.streams, 1, &Weights::end);
  out.prefix = std::move(of_layer);
}

void list_tensors(const GatedStreams& residual, const ResidualLayer& layer,
                  GatedStreams::Weights* weights, LayerTensors& out) {
  using Gate = ops::StreamGate;
  using Weights = GatedStreams::Weights;
  const int64_t row = residual.count * layer.hidden;
  const auto add_gate = [&](const std::string& name, bool injects, Gate Weights::*member) {
    Gate* const gate = target_in(weights, member);
    out.add_norm(name + ".hc_norm", row, RmsNorm{}, target_in(gate, &Gate::norm));
    out.add_matrix(name + ".input_mix_weight_down.weight", residual.rank, row,
                   target_in(gate, &Gate::down));
    out.add_matrix(name + ".input_mix_weight_up.weight", row, residual.rank,
                   target_in(gate, &Gate::up));
    if (!injects) return;
    out.add_matrix(name + ".block_inject_weight.weight", residual.count, row,
                   target_in(gate, &Gate::inject));
  };
  add_gate("attn_hyper_connection", true, &Weights::mixer);
  add_gate("mlp_hyper_connection", true, &Weights::mlp);
  if (!layer.is_last) return;
  std::string of_layer = std::exchange(out.prefix, std::string(layer.model_prefix));
  add_gate("hyper_connection_mixer", false, &Weights::end);
  out.prefix = std::move(of_layer);
}

// Named as in Kimi K3's checkpoints, but for the last two, which are of no layer there.
void list_tensors(const BlockSums& residual, const ResidualLayer& layer,
                  BlockSums::Weights* weights, LayerTensors& out) {
  using Query = BlockSums::Query;
  using Weights = BlockSums::Weights;
  const auto add_query = [&](const std::string& name, Query Weights::*member) {
    Query* const query = target_in(weights, member);
    if (residual.normed_values) {
      out.add_plain_norm(layer.hidden, target_in(query, &Query::norm));
      out.norms.back().has_offset = false;
      out.add_vector(name + ".query", layer.hidden, target_in(query, &Query::query));
      return;
    }
    out.add_norm(name + "_norm", layer.hidden, RmsNorm{}, target_in(query, &Query::norm));
    out.add_vector(name + "_proj.weight", layer.hidden, target_in(query, &Query::query));
  };
  add_query("self_attention_res", &Weights::mixer);
  add_query("mlp_res", &Weights::mlp);
  if (layer.is_last) add_query("output_attn_res", &Weights::end);
}

void list_tensors(const ScaledAdds& residual, const ResidualLayer& layer,
                  ScaledAdds::Weights* weights, LayerTensors& out) {
  using Weights = ScaledAdds::Weights;
  if (residual.by_depth) return;
  out.add_vector("attn_residual_gate", layer.hidden, target_in(weights, &Weights::mixer));
  out.add_vector("mlp_residual_gate", layer.hidden, target_in(weights, &Weights::mlp));
}

StreamNumbers stream_numbers(const OneStream& /*residual*/) {
  return {};
}

StreamNumbers stream_numbers(const ScaledAdds& /*residual*/) {
  return {};
}

StreamNumbers stream_numbers(const MixedStreams& residual) {
  const auto count = static_cast<size_t>(residual.count);
  return {std::vector<float>(count, 1),
          std::vector<float>(count, 1.0f / static_cast<float>(residual.count))};
}

StreamNumbers stream_numbers(const HyperConnections& residual) {
  StreamNumbers numbers = stream_numbers(MixedStreams{.count = residual.rule.streams});
  if (residual.is_delayed) {
    numbers.first.assign(numbers.begin.size(), 0);
    numbers.first[0] = 1;
  }
  return numbers;
}

StreamNumbers stream_numbers(const GatedStreams& residual) {
  return stream_numbers(MixedStreams{.count = residual.count});
}

StreamNumbers stream_numbers(const BlockSums& residual) {
  const size_t count = 1 + static_cast<size_t>(residual.blocks);
  StreamNumbers numbers{std::vector<float>(count), std::vector<float>(count, 1)};
  numbers.begin[0] = 1;  // the prefix
  return numbers;
}

}  // namespace rudder::model
