// What the command line says in place of a config.json: any of its keys, and the rope. Called once
// by apps/ when it opens a model; what comes out is read as if the file had said it.
#pragma once

#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::model {

struct ConfigOverrides {
  std::string keys = {};  // a JSON object: keys of config.json; those of "text_config" inside it
  std::string rope_scaling = {};  // a JSON object: the rope
  double rope_theta = 0;          // its base; 0: as the file or the rope has it

  bool empty() const { return keys.empty() && rope_scaling.empty() && rope_theta == 0; }
};

// The text of a config.json with them. A rope given by one of its two names is the only one, but
// keeps the base that the file says where it brings none. kInvalidArgument: a value that is no
// object, or a key that nothing here reads; `where` is the flag and the key's path.
Result<std::string> override_config(std::string_view config, const ConfigOverrides& overrides);

}  // namespace rudder::model
