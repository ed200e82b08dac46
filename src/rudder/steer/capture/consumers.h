// Makes the consumers that an operator's flags name. Called once at start.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/features/feature_reader.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/feature_ask.h"
#include "rudder/steer/capture/kept_rows.h"
#include "rudder/steer/capture/settings.h"
#include "rudder/tap/lens.h"
#include "rudder/tap/site.h"

namespace rudder::steer::capture {

// "filesystem:root=DIR,fsync=false": a name and its options. Values may not have a comma in them.
class ConsumerFlag {
 public:
  // `flag` names the setting in errors.
  static Result<ConsumerFlag> parse(std::string_view text, const std::string& flag);

  const std::string& name() const { return name_; }
  const std::string& where() const { return where_; }
  const std::map<std::string, std::string>& options() const { return options_; }

  // Each takes an option out, so that finish() can name those that nobody knows.
  std::string text(const std::string& key, std::string fallback);
  Result<bool> boolean(const std::string& key, bool fallback);
  Result<int64_t> integer(const std::string& key, int64_t fallback, int64_t low, int64_t high);
  Result<void> finish() const;

 private:
  tl::unexpected<Error> bad(const std::string& key, std::string message) const;

  std::string name_;
  std::string where_;
  std::map<std::string, std::string> options_;
};

struct MadeConsumers {
  std::vector<std::shared_ptr<Consumer>> consumers;
  std::shared_ptr<KeptRows> kept;  // of the consumer `kept`; null: there is none
};
Result<MadeConsumers> make_consumers(const CaptureSettings& settings, const tap::Geometry& geometry,
                                     const VectorLookup& lookup,
                                     const DictionaryLookup& dictionaries,
                                     const std::shared_ptr<tap::Lens>& lens,
                                     const std::shared_ptr<features::FeatureReader>& features);

}  // namespace rudder::steer::capture
