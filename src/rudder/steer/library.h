// Library: the steering that a server knows by name, and the steering of every request. Modules are
// registered from files or JSON, at start or while requests run; a request that resolved a module
// keeps it, whatever happens to the name. Owned by the server, outlives its requests. Any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/config.h"

namespace rudder::steer {

// A named config. Immutable.
struct Module {
  std::string name;
  std::string source;      // "json", or the file that it was read from
  std::string model_hint;  // what the file says it was made for; informative
  std::shared_ptr<const Config> config;
};

// Whoever keeps programs on the device: told what to hold there for whole registrations. Called on
// the thread that registers, one call at a time, outside the library's locks.
class Residency {
 public:
  virtual ~Residency() = default;
  // An Error (it could never fit) refuses the registration. Pins are counted by key.
  virtual Result<void> pin(const std::vector<KeyedProgram>& programs) = 0;
  virtual void unpin(const std::vector<KeyedProgram>& programs) = 0;
};

class Library {
 public:
  // `residency` may be null, and outlives the library.
  Library(Model model, Residency* residency);
  ~Library();

  // Names are 1 to 128 of [A-Za-z0-9._-]. A name that is taken is refused (kInvalidArgument, where
  // = "name") unless `replace`, or unless the content is the same, which changes nothing. Files:
  // .safetensors, .npz, .gguf, .json, see loaders.h.
  Result<std::shared_ptr<const Module>> add_file(std::string_view name, const std::string& path,
                                                 bool replace = false);
  // {"name": …, "replace"?: …, and the steering fields of a request}.
  Result<std::shared_ptr<const Module>> add_json(const boost::json::object& body);
  Result<void> remove(std::string_view name);  // kNotFound

  std::vector<std::shared_ptr<const Module>> modules() const;       // by name
  std::shared_ptr<const Module> find(std::string_view name) const;  // null: there is none

  // The steering of every request, before its own. Body: the steering fields of a request, or
  // {"vectors", "prefill_vectors", "decode_vectors", "replace"}; without "replace": true it adds to
  // what is set.
  Result<void> set_global(const boost::json::object& body);
  void clear_global();
  std::shared_ptr<const Config> global() const;  // null: none

  // The steering of a request: global, then named, then inline. Null: none at all. Errors carry the
  // JSON path of the field as `where`; kNotFound for a name that is not registered.
  Result<std::shared_ptr<const Config>> resolve(const boost::json::object& body) const;

  const Model& model() const;

 private:
  struct State;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// For GET /v1/steering and /v1/steering/modules: name, source, and for each point its ops with the
// norms of their vectors.
boost::json::object describe(const Module& module);
boost::json::array describe(const Config& config);

}  // namespace rudder::steer
