#include "rudder/testing/reference_residual.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "rudder/testing/reference_gates.h"
#include "rudder/testing/reference_streams.h"

namespace rudder::testing {
namespace {

// What a kind's weights have for a part.
template <typename Weights>
const auto& of_part(const Weights& weights, ReferenceResidual::Part part) {
  using Part = ReferenceResidual::Part;
  return part == Part::kEnd ? weights.end : part == Part::kMlp ? weights.mlp : weights.mixer;
}

void write_mixed(const model::MixedStreams::Site& site, ReferenceResidual::Streams& x,
                 const Matrix& branch) {
  ReferenceResidual::Streams before = x;
  before.push_back(branch);
  for (size_t j = 0; j < x.size(); ++j) {
    std::vector<double> numbers(x.size() + 1);
    for (size_t i = 0; i < x.size(); ++i) {
      numbers[i] = to_matrix(site.mix).values[i * x.size() + j];
    }
    numbers.back() = to_matrix(site.write).values[j];
    x[j] = ReferenceResidual::sum_of(before, numbers);
  }
}

// `terms`: of the sum behind the write, the embedding among them.
void write_scaled(const model::ScaledAdds& kind, const tensor::View& gate, size_t terms,
                  const Matrix& branch, Matrix& x) {
  const auto n = static_cast<double>(terms);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t k = 0; k < x.cols; ++k) {
      double keep = std::sqrt((n - 1) / n);
      double add = 1 / std::sqrt(n);
      if (!kind.by_depth) {
        const double w = double{gate.as<float>()[k]} / double{kind.temperature};
        add = 1 / (1 + std::exp(-w));
        keep = std::sqrt(std::max(1 / (1 + std::exp(w)) * (1 + add), 1e-3));
      }
      x.at(t, k) = keep * x.at(t, k) + add * branch.at(t, k);
    }
  }
}

}  // namespace

ReferenceResidual::Streams ReferenceResidual::begun(const Matrix& embedded) const {
  const auto count = static_cast<size_t>(form_of(spec_.residual).streams);
  if (!std::holds_alternative<model::BlockSums>(spec_.residual)) return Streams(count, embedded);
  Streams x(count, Matrix(embedded.rows, embedded.cols));
  x[0] = embedded;
  return x;
}

Matrix ReferenceResidual::sum_of(const Streams& x, const std::vector<double>& numbers) {
  Matrix sum(x[0].rows, x[0].cols);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t k = 0; k < sum.values.size(); ++k) sum.values[k] += numbers[i] * x[i].values[k];
  }
  return sum;
}

Matrix ReferenceResidual::read(const Streams& x, size_t layer, Part part) const {
  if (const auto* const mixed = weights_of<model::MixedStreams>(layer)) {
    const tensor::View& numbers = part == Part::kEnd   ? mixed->end
                                  : part == Part::kMlp ? mixed->mlp.read
                                                       : mixed->mixer.read;
    return sum_of(x, to_matrix(numbers).values);
  }
  if (is_delayed(spec_.residual)) {
    return written_pre_.rows == 0 ? x[0] : reference_read(written_pre_, x);
  }
  if (const auto* const gated = weights_of<model::GatedStreams>(layer)) {
    return reference_gated_read(to_reference(of_part(*gated, part)), x);
  }
  if (const auto* const hyper = weights_of<model::HyperConnections>(layer)) {
    return reference_collapse(std::get<model::HyperConnections>(spec_.residual).rule,
                              to_reference(of_part(*hyper, part)), x);
  }
  if (const auto* const sums = weights_of<model::BlockSums>(layer)) {
    const auto& query = of_part(*sums, part);
    const bool normed = std::get<model::BlockSums>(spec_.residual).normed_values;
    return reference_block_read(
        Streams(x.begin(), x.begin() + 1 + blocks_at(layer, part)),
        {.norm = to_matrix(query.norm.weight),
         .query = to_matrix(query.query),
         .eps = double{query.norm.eps},
         .score_scale = normed ? 1 / std::sqrt(static_cast<double>(x[0].cols)) : 1,
         .normed_values = normed});
  }
  return x[0];
}

std::ptrdiff_t ReferenceResidual::blocks_at(size_t layer, Part part) const {
  const auto length = static_cast<size_t>(std::get<model::BlockSums>(spec_.residual).layers);
  std::ptrdiff_t count = 0;
  for (size_t begin = 0; begin < layer + (part == Part::kMixer ? 0 : 1); begin += length) ++count;
  return count;
}

void ReferenceResidual::write(Streams& x, size_t layer, Part part, const Matrix& branch) {
  if (weights_of<model::BlockSums>(layer) != nullptr) {
    const auto length = static_cast<size_t>(std::get<model::BlockSums>(spec_.residual).layers);
    if (part == Part::kMixer && layer % length == 0) {
      x[1 + layer / length] = std::exchange(x[0], branch);
    } else {
      x[0] = sum_of({x[0], branch}, {1, 1});
    }
  } else if (const auto* const hyper = weights_of<model::HyperConnections>(layer)) {
    const ops::StreamRule& rule = std::get<model::HyperConnections>(spec_.residual).rule;
    const ReferenceMap map = to_reference(of_part(*hyper, part));
    if (is_delayed(spec_.residual)) written_pre_ = reference_pre(rule, map, x);
    x = reference_connect(rule, map, x, branch);
  } else if (const auto* const gated = weights_of<model::GatedStreams>(layer)) {
    x = reference_gated_write(to_reference(of_part(*gated, part)), x, branch);
  } else if (const auto* const gates = weights_of<model::ScaledAdds>(layer)) {
    write_scaled(std::get<model::ScaledAdds>(spec_.residual),
                 part == Part::kMixer ? gates->mixer : gates->mlp,
                 2 * layer + (part == Part::kMixer ? 2 : 3), branch, x[0]);
  } else if (const auto* const mixed = weights_of<model::MixedStreams>(layer)) {
    write_mixed(part == Part::kMixer ? mixed->mixer : mixed->mlp, x, branch);
  } else {
    x[0] = sum_of({x[0], branch}, {1, 1});
  }
}

}  // namespace rudder::testing
