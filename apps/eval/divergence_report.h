// A divergence of texts for people and for machines (docs/eval.md). Pure.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "eval/divergence_of_texts.h"

namespace rudder::apps {

std::string divergence_text(const TextDivergence& found);  // lines
boost::json::object divergence_json(const TextDivergence& found);

}  // namespace rudder::apps
