#include "rudder/testing/remembering_ops.h"

#include "rudder/cpu/reference_ops.h"

namespace rudder::testing {
namespace {

void append_rows(Matrix& to, const Matrix& rows) {
  to.cols = rows.cols;
  to.rows += rows.rows;
  to.values.insert(to.values.end(), rows.values.begin(), rows.values.end());
}

void append_columns(Matrix& to, const Matrix& row) {
  to.rows = 1;
  to.cols += row.cols;
  to.values.insert(to.values.end(), row.values.begin(), row.values.end());
}

}  // namespace

RememberingOps::RememberingOps() : PassingOps(cpu::make_reference_ops()) {}

Result<ops::LinearWeight> RememberingOps::make_linear(std::span<const ops::LinearPart> parts) {
  RUDDER_TRY(ops::LinearWeight weight, PassingOps::make_linear(parts));
  remember(weight, parts);
  return weight;
}

Result<ops::LinearWeight> RememberingOps::make_experts(std::span<const ops::LinearPart> parts,
                                                       int64_t experts) {
  RUDDER_TRY(ops::LinearWeight weight, PassingOps::make_experts(parts, experts));
  remember(weight, parts);
  return weight;
}

void RememberingOps::remember(const ops::LinearWeight& weight,
                              std::span<const ops::LinearPart> parts) {
  Product& product = products_[weight.packed.get()];
  product = {};  // one that is gone may have been there
  for (const ops::LinearPart& part : parts) {
    append_rows(product.weight, to_matrix(part.codes));
    if (!part.bias.empty()) append_columns(product.bias, to_matrix(part.bias));
  }
}

}  // namespace rudder::testing
