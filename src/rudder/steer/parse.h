// Parses the steering fields of a request, of a module and of the server-wide steering into ops.
// The server's threads call it after they have parsed the body; pure functions. Every Error is
// kInvalidArgument with the JSON path of the field as `where` ("steering[1].vector[3]"), or
// kNotFound for a name that is not registered. schema.h has the schema, with examples.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/capture/kept_rows.h"
#include "rudder/steer/config.h"
#include "rudder/steer/op_spec.h"

namespace rudder::steer {

// Bounds of one request, so that a short body cannot ask for hours or gigabytes.
inline constexpr size_t kMaxSpecs = 1 << 16;  // ops at points, those of named modules among them
inline constexpr size_t kMaxNamed = 64;
inline constexpr size_t kMaxAxes = 64;  // of one ablation

// Where names lead. Implemented by Library over a snapshot of its modules.
class Names {
 public:
  virtual ~Names() = default;
  // Null: unknown.
  virtual std::shared_ptr<const Config> find(std::string_view name) const = 0;
  virtual std::shared_ptr<const features::DictionarySet> find_dictionary(
      std::string_view name) const = 0;
};

struct NamedRef {
  std::string name;
  double scale = 1;
  std::shared_ptr<const Config> config;
  std::string where;
};

struct ParsedSteering {
  std::vector<NamedRef> named;  // steering_name, then the named elements of `steering`
  std::vector<OpSpec> ops;      // tiers, specs of clamps, elements of `steering`

  bool empty() const { return named.empty() && ops.empty(); }
};

// The fields that belong to steering: steering, steering_name, steering_vectors,
// prefill_steering_vectors, decode_steering_vectors, sae_clamp_specs,
// sae_full_reconstruction_specs.
std::span<const std::string_view> steering_fields();
bool has_steering_fields(const boost::json::object& body);  // one that is not null

// Reads those fields of `body` and ignores the others. A field that is null is absent. `kept`:
// where patches find rows of other requests.
Result<ParsedSteering> parse_steering(const boost::json::object& body, const Model& model,
                                      const Names& names, const capture::KeptView& kept = {});

// The same of a module or of server-wide steering, where the tiers may also be called vectors,
// prefill_vectors and decode_vectors. Fields that are neither these nor in `others` are refused.
Result<ParsedSteering> parse_admin_steering(const boost::json::object& body,
                                            std::span<const std::string_view> others,
                                            const Model& model, const Names& names);

// Appends the ops of a named module under its scale, which multiplies the scales of add, add_norm
// and add_renorm; ops that project away, patch or clamp, features among them, do not change.
Result<void> append_scaled(const NamedRef& ref, std::vector<OpSpec>& ops);

}  // namespace rudder::steer
