// The option `dictionary` of the consumer `response`: which features of a dictionary are told of a
// captured row, and what they are. The dictionary is encoded on the consumer's own thread, in fp32.
// Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/features/dictionary.h"
#include "rudder/steer/features/top_features.h"

namespace rudder::steer::capture {

// A registered dictionary; null: there is none of that name.
using DictionaryLookup = std::function<std::shared_ptr<const DictionarySet>(std::string_view name)>;

struct FeatureAsk {
  std::string name;
  std::shared_ptr<const Dictionary> dictionary;  // null: nothing is asked
  int32_t top = 0;                               // so many of the largest; 0: `features`
  std::vector<int32_t> features;                 // in the order of the request

  bool empty() const { return dictionary == nullptr; }
  // The most numbers that a row can have.
  size_t most() const { return top > 0 ? static_cast<size_t>(top) : features.size(); }
};

// "dictionary": name, "layer"?, and "top": 1 to 1024 (8 without either) or "features": [numbers].
// Nothing where `fields` has no "dictionary"; the others are then refused.
Result<FeatureAsk> parse_feature_ask(const boost::json::object& fields, const std::string& path,
                                     const DictionaryLookup& lookup);

// Of each of the rows [n, d_in] where the dictionary reads; several at once cost less than one by
// one. Those that the ask lists cost their own columns alone, but with topk.
std::vector<std::vector<FeatureValue>> read_features(const FeatureAsk& ask,
                                                     std::span<const float> rows);

}  // namespace rudder::steer::capture
