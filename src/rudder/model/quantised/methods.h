// Methods of quantization_config whose weights have few bits, and what all readers of these configs
// share. Errors name the field. quantisation.cpp calls them; load time, one thread.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "rudder/model/quantised/quantisation.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

Result<Quantisation> read_gptq_config(const weights::HfConfig& config);
Result<Quantisation> read_awq_config(const weights::HfConfig& config);
Result<Quantisation> read_bitsandbytes_config(const weights::HfConfig& config);
Result<Quantisation> read_hqq_config(const weights::HfConfig& config);
Result<Quantisation> read_mxfp4_config(const weights::HfConfig& config);

// "'KEY' is 'VALUE'; what can be served is KNOWN".
tl::unexpected<Error> unsupported(const weights::HfConfig& config, std::string_view key,
                                  std::string_view value, std::string_view known);
Result<std::vector<weights::NamePattern>> read_patterns(const weights::HfConfig& config,
                                                        std::string_view key);
// The first of the keys that is there; the formats changed their names over time.
Result<std::vector<weights::NamePattern>> read_excluded(
    const weights::HfConfig& config, std::initializer_list<std::string_view> keys);
// [rows, inputs] that share a scale.
Result<void> read_block(const weights::HfConfig& config, std::string_view key,
                        Quantisation::Group& group);

}  // namespace rudder::model
