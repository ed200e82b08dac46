// Library: the named steering modules and dictionaries of a server, and the steering that applies
// to every request. They are registered from files or JSON, at start or while requests run. A
// request keeps the module that it resolved, even when the name is replaced or removed. The server
// owns the library; it outlives all requests. Any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/features/dictionary.h"
#include "rudder/steer/capture/kept_rows.h"
#include "rudder/steer/capture/watch.h"
#include "rudder/steer/config.h"

namespace rudder::steer {

// A named config. Immutable.
struct Module {
  std::string name;
  std::string source;      // "json", or the file that it was read from
  std::string model_hint;  // what the file says it was made for; informative
  std::shared_ptr<const Config> config;
};

// Keeps the programs of registered modules on the device. The Library calls it on the thread that
// registers, one call at a time.
class Residency {
 public:
  virtual ~Residency() = default;
  // An Error (it could never fit) refuses the registration. Pins are counted by key.
  virtual Result<void> pin(const std::vector<KeyedProgram>& programs) = 0;
  virtual void unpin(const std::vector<KeyedProgram>& programs) = 0;
};

class Library {
 public:
  // `residency` may be null, and outlives the library's use.
  Library(Model model, Residency* residency);
  ~Library();

  // Names are 1 to 128 of [A-Za-z0-9._-]. A name that is taken is refused (kInvalidArgument,
  // `where` = "name") unless it is to be replaced. Requests that run keep what they resolved.
  // Files: .safetensors, .npz, .gguf, .json; see loaders.h.
  Result<std::shared_ptr<const Module>> add_file(std::string_view name, const std::string& path,
                                                 bool replace = false);
  // {"name", "replace"?: bool, and the steering fields of a request or vectors, prefill_vectors,
  // decode_vectors}.
  Result<std::shared_ptr<const Module>> add_json(const boost::json::object& body);
  Result<void> remove(std::string_view name);  // kNotFound

  // A dictionary in `path` (features/load_dictionary.h), whose features requests may then name; one
  // that does not fit the model is refused. Ops hold the dictionary that they were made with.
  Result<std::shared_ptr<const features::DictionarySet>> add_dictionary(std::string_view name,
                                                                        const std::string& path,
                                                                        std::string_view points,
                                                                        bool replace = false);
  // {"name", "path", "site"?, "replace"?: bool}: `path` below the folder that was allowed, which
  // "..", links that lead out of it and absolute paths are not.
  Result<std::shared_ptr<const features::DictionarySet>> add_dictionary_json(
      const boost::json::object& body);
  // Once, before the first call of that; kNotFound when there is no such folder.
  Result<void> allow_dictionaries_below(const std::string& root);
  Result<void> remove_dictionary(std::string_view name);                             // kNotFound
  std::vector<std::shared_ptr<const features::DictionarySet>> dictionaries() const;  // by name
  std::shared_ptr<const features::DictionarySet> find_dictionary(std::string_view name) const;

  std::vector<std::shared_ptr<const Module>> modules() const;       // by name
  std::shared_ptr<const Module> find(std::string_view name) const;  // null: there is none

  // The steering of every request, before its own: {"replace"?: bool, and fields as in add_json}.
  // Adds to the present steering, or replaces it. Modules named here are copied.
  Result<void> set_global(const boost::json::object& body);
  Result<void> clear_global();                   // an Error: as of Residency::pin
  std::shared_ptr<const Config> global() const;  // null: none

  // The steering of a request: global, then named, then inline. Null: none at all. Errors: those of
  // parse_steering and Config::build.
  Result<std::shared_ptr<const Config>> resolve(const boost::json::object& body,
                                                const capture::KeptView& kept = {}) const;

  // `stop_when` of a request (parse_watch.h).
  Result<capture::StopWhen> stop_when(const boost::json::value& value,
                                      const std::string& path) const;

  const Model& model() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// For listings: [{"site", "layer", "op", "scale", "norm", "phase"}, …], a vector's norm without the
// scale.
boost::json::array describe(const Config& config);
boost::json::object describe(const Module& module);  // {"name", "source", "model_hint"?, "ops"}
// {"name", "source", "format", "model"?, "layers": [{"read", "write", "features", …}, …]}
boost::json::object describe(const features::DictionarySet& set);

}  // namespace rudder::steer
