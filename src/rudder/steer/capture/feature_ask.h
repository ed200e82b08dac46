// The option `dictionary` of the consumer `response`: which features of a dictionary are told of a
// captured row. What they are is a reader's (feature_reader.h). A pure function; any thread.
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

namespace rudder::steer::capture {

// A registered dictionary; null: there is none of that name.
using DictionaryLookup = std::function<std::shared_ptr<const DictionarySet>(std::string_view name)>;

class FeatureReader;

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
// Nothing where `fields` has no "dictionary"; the others are then refused. So is a dictionary that
// `reader` has no room for; it may be null.
Result<FeatureAsk> parse_feature_ask(const boost::json::object& fields, const std::string& path,
                                     const DictionaryLookup& lookup, const FeatureReader* reader);

}  // namespace rudder::steer::capture
