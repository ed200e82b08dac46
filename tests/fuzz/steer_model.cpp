#include "steer_model.h"

#include <boost/json.hpp>
#include <cmath>
#include <string>

#include "rudder/steer/loaders.h"

namespace rudder::fuzz {
namespace {

using steer::OpSpec;

class OneModule final : public steer::Names {
 public:
  OneModule() {
    const boost::json::object body = {
        {"steering",
         {{"op", "add"}, {"site", "resid_post"}, {"layers", {3, 7}}, {"vector", {1, -2, 0.5, 4}}}}};
    const auto parsed = steer::parse_steering(body, fuzz_model(), *this);
    RUDDER_CHECK(parsed.has_value(), "{}", parsed.error().to_string());
    config_ =
        *steer::Config::build(std::make_shared<const steer::Model>(fuzz_model()), parsed->ops);
  }
  std::shared_ptr<const steer::Config> find(std::string_view name) const override {
    return name == "mood" ? config_ : nullptr;
  }
  std::shared_ptr<const features::DictionarySet> find_dictionary(
      std::string_view /*name*/) const override {
    return nullptr;
  }

 private:
  std::shared_ptr<const steer::Config> config_;
};

void require_row(const steer::Row& row, int32_t width) {
  if (row.empty()) return;
  RUDDER_CHECK(row.width == width, "{} wide, the point is {}", row.width, width);
  for (const float value : row.values()) {
    RUDDER_CHECK(std::isfinite(value) && std::fabs(value) <= steer::kMaxMagnitude, "{}", value);
  }
}

}  // namespace

steer::Model fuzz_model() {
  steer::Model model;
  model.geometry.num_layers = 16;
  model.geometry.hidden = 4;
  model.geometry.mlp_width.assign(16, 6);
  model.geometry.heads.assign(16, {4, 2});
  model.geometry.sites.assign(16, tap::dense_sites_but(tap::Site::kFinalNorm));
  model.geometry.sites.back() = tap::kDenseSites;
  model.geometry.routing.resize(16);
  for (const size_t layer : {3, 5}) {
    model.geometry.sites[layer] |= tap::kRouterSites;
    model.geometry.routing[layer] = {.experts = 9, .chosen = 2, .by_scores = layer == 5};
  }
  model.limits = {33, 4096, 1 << 20, 4, 1 << 12, 64, true};
  model.hash_secret = {0x0123456789abcdef, 0xfedcba9876543210};
  return model;
}

const steer::Names& fuzz_names() {
  static const OneModule names;
  return names;
}

void require_ops(const std::vector<OpSpec>& ops, const steer::Model& model) {
  RUDDER_CHECK(ops.size() <= steer::kMaxSpecs, "{} ops", ops.size());
  for (const OpSpec& op : ops) {
    RUDDER_CHECK(model.geometry.has(op.point), "{}: a point that the model lacks", op.where);
    const int32_t width = model.geometry.width(op.point);
    require_row(op.vector, width);
    require_row(op.second, width);
    for (const steer::Row& axis : op.more_axes) require_row(axis, width);
    RUDDER_CHECK(std::isfinite(op.scale) && std::isfinite(op.parameter), "{}", op.where);
  }
}

std::vector<tap::ContentKey> keys_of(const std::vector<OpSpec>& ops, const steer::Model& model) {
  const auto config = steer::Config::build(std::make_shared<const steer::Model>(model), ops);
  if (!config) {
    require_error(config.error(), {ErrorCode::kInvalidArgument});
    return {};
  }
  const size_t selectors = (*config)->selectors().size();
  RUDDER_CHECK(selectors <= 64, "{} selectors", selectors);
  const uint64_t all = selectors == 64 ? ~uint64_t{0} : (uint64_t{1} << selectors) - 1;
  return {(*config)->program(all).key, (*config)->program(0).key};
}

void require_module(std::string_view bytes, std::string_view extension) {
  const steer::Model model = fuzz_model();
  const std::string file = "module" + std::string(extension);
  const auto loaded =
      steer::load_module_bytes(std::as_bytes(std::span(bytes)), file, model, fuzz_names());
  if (!loaded) {
    return require_error(
        loaded.error(),
        {ErrorCode::kCorruptFile, ErrorCode::kInvalidArgument, ErrorCode::kUnsupported}, file);
  }
  require_ops(loaded->ops, model);
  keys_of(loaded->ops, model);
}

}  // namespace rudder::fuzz
