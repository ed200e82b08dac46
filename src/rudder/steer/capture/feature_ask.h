// Reads the option `dictionary` of the consumer `response`: which features of a dictionary are told
// of a captured row. A pure function; any thread.
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
#include "rudder/features/dictionary.h"
#include "rudder/features/feature_reader.h"

namespace rudder::steer::capture {

// A registered dictionary; null: there is none of that name.
using DictionaryLookup =
    std::function<std::shared_ptr<const features::DictionarySet>(std::string_view name)>;

// "dictionary": name, "layer"?, and "top": 1 to 1024 (8 without either) or "features": [numbers].
// Nothing where `fields` has no "dictionary"; the others are then refused. So is a dictionary that
// `reader` has no room for; it may be null.
Result<features::FeatureAsk> parse_feature_ask(const boost::json::object& fields,
                                               const std::string& path,
                                               const DictionaryLookup& lookup,
                                               const features::FeatureReader* reader);

}  // namespace rudder::steer::capture
