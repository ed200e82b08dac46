// Weights in place of others: those of a model that is loaded, wherever they are held, take the
// values of weights of the same form that were loaded beside them. Who holds a view or a
// LinearWeight of the first by reference sees the new values. While nothing computes; one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/model/stage.h"
#include "rudder/model/weights.h"
#include "rudder/ops/comm.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// All that a rank's part of a model holds of the checkpoint, in one order for equal parts.
struct WeightParts {
  struct Values {
    std::string name;
    ops::View* view;
  };
  struct Product {
    std::string name;
    ops::LinearWeight* weight;
  };
  std::vector<Values> values;
  std::vector<Product> products;
  std::vector<float*> numbers;
};

// `spec` is the whole model's, `weights` are what load_weights() gave for that rank and stage of
// it.
Result<WeightParts> parts_of(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                             ops::Rank rank, const Stage& stage, Weights& weights);

// kInvalidArgument, naming the module: `fresh` is of another form, so that it cannot take the
// place.
Result<void> check_same_form(const WeightParts& parts, const WeightParts& fresh);
// Behind that check: on a host, whose views are its own memory. `fresh` is left without products.
void take_values(const WeightParts& parts, const WeightParts& fresh);

}  // namespace rudder::model
