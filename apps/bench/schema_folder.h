// `rudder bench constraint --schemas`: a folder of JSON schemas, compiled one after the other.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/form_engine.h"

namespace rudder::apps {

// Files whose names end in ".json", in the folder and below: a schema, or an object that has one
// as `schema` beside `tests`. Prints the share that is taken, the reasons of the others, and
// percentiles of CPU time and memory of the compiles. kNotFound: there are none.
Result<void> compile_schema_folder(const std::string& folder, const constraint::FormEngine& engine);

}  // namespace rudder::apps
