// A model of hidden size 4, and the steps from a body's text to its config. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/steer/features/test_dictionary.h"
#include "rudder/steer/parse.h"
#include "rudder/steer/test_support.h"

namespace rudder::steer {

inline constexpr std::string_view kV = "[0.5, -1, 0.25, 2]";

// Hidden 4, 16 layers, mlp width 6, 4 heads of 2; the last layer alone has final_norm. Layers 13
// and 14 are mixtures of 4 experts, too.
inline Model small_model() {
  Model model = test_model();
  model.geometry.num_layers = 16;
  model.geometry.hidden = 4;
  model.geometry.mlp_width.assign(16, 6);
  model.geometry.heads.assign(16, {4, 2});
  model.geometry.sites.assign(16, tap::dense_sites_but(tap::Site::kFinalNorm));
  model.geometry.sites.back() = tap::kDenseSites;
  model.geometry.routing.resize(16);
  for (const size_t layer : {13, 14}) {
    model.geometry.sites[layer] |= tap::kRouterSites;
    model.geometry.routing[layer] = {.experts = 4, .chosen = 2, .by_scores = layer == 14};
  }
  return model;
}

class OneName final : public Names {
 public:
  void set(std::string name, std::shared_ptr<const Config> config) {
    configs_[std::move(name)] = std::move(config);
  }
  std::shared_ptr<const Config> find(std::string_view name) const override {
    const auto found = configs_.find(std::string(name));
    return found == configs_.end() ? nullptr : found->second;
  }
  void set_dictionary(std::shared_ptr<const features::DictionarySet> set) {
    dictionary_ = std::move(set);
  }
  std::shared_ptr<const features::DictionarySet> find_dictionary(
      std::string_view name) const override {
    return dictionary_ != nullptr && dictionary_->name == name ? dictionary_ : nullptr;
  }

 private:
  std::map<std::string, std::shared_ptr<const Config>> configs_;
  std::shared_ptr<const features::DictionarySet> dictionary_;
};

// The dictionary "sae" of the schema's examples.
inline OneName example_names() {
  OneName names;
  names.set_dictionary(named_set(
      "sae", random_dictionary(
                 {.read = {10, tap::Site::kResidPost}, .write = {10, tap::Site::kResidPost}}, 1)));
  return names;
}

inline boost::json::object object_of(std::string_view text) {
  auto value = parse_json(text, "test");
  EXPECT_TRUE(value.has_value()) << text;
  return value->as_object();
}

// small_model() on a backend that encodes dictionaries of up to so many features.
inline Model encoding_model(int32_t max_features = 6) {
  Model model = small_model();
  model.limits.max_features = max_features;
  return model;
}

inline Result<ParsedSteering> parse(std::string_view body, const Names& names = OneName(),
                                    const Model& model = small_model()) {
  return parse_steering(object_of(body), model, names);
}

inline Result<std::shared_ptr<const Config>> config_of(std::string_view body,
                                                       const Names& names = OneName(),
                                                       const Model& model = small_model()) {
  auto parsed = parse(body, names, model);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  return Config::build(std::make_shared<const Model>(model), parsed->ops);
}

}  // namespace rudder::steer
