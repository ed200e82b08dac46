#include "rudder/steer/reconstructions.h"

#include <fmt/format.h>

#include "rudder/features/dictionary.h"

namespace rudder::steer {

Result<void> Reconstructions::add(const OpSpec& spec) {
  if (spec.op != OpName::kFeature || !spec.clamp.full) return {};
  const features::Dictionary* const dictionary = spec.clamp.dictionary.get();
  const Full full{dictionary, dictionary->read.index(), dictionary->write.index()};
  for (const Full& other : full_) {
    if (other.dictionary == dictionary) return {};
    const bool carries_both = full.read < full.write && other.read < other.write &&
                              full.read < other.write && other.read < full.write;
    if (full.write != other.write && !carries_both) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("two dictionaries reconstruct {} of layer {}, or one reads before "
                            "another has written",
                            tap::site_name(dictionary->write.site), dictionary->write.layer),
                spec.where);
  }
  full_.push_back(full);
  return {};
}

}  // namespace rudder::steer
