// A config.json that is accepted gives a model of sizes that the rest of the program can count
// with; one that is not gives an error at one of its keys.
#include "require.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"
#include "rudder/weights/hf_config.h"

namespace rudder::fuzz {

void fuzz_model_config(std::string_view input) {
  const CpuBound bound(5);
  const auto config = weights::HfConfig::parse(input, "config.json");
  if (!config) return require_error(config.error(), {ErrorCode::kCorruptFile}, "config.json");
  const auto spec = model::read_config(*config);
  if (!spec) {
    return require_error(
        spec.error(),
        {ErrorCode::kCorruptFile, ErrorCode::kUnsupported, ErrorCode::kInvalidArgument},
        "config.json");
  }
  RUDDER_CHECK(spec->hidden > 0 && spec->vocab > 0 && spec->max_positions > 0);
  RUDDER_CHECK(!spec->layers.empty());
  const auto architecture = model::find_architecture(spec->architecture);
  RUDDER_CHECK(architecture.has_value(), "{}", spec->architecture);
  const size_t layers[] = {0, spec->layers.size() - 1};
  for (const size_t layer : layers) {
    const auto tensors = model::layer_tensors(*spec, (*architecture)->names, layer);
    RUDDER_CHECK(!tensors.linears.empty());
    for (const auto& module : tensors.linears)
      RUDDER_CHECK(module.in.count() > 0 && module.rows() > 0);
  }
  RUDDER_CHECK(model::weight_budget(*spec, (*architecture)->names, model::all_as({}))->bytes > 0);
}

}  // namespace rudder::fuzz
