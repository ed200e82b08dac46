#include "adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/engine/entropy.h"
#include "rudder/weights/hf_config.h"

namespace rudder::apps {
namespace {

constexpr const char* kSetting = "lora-modules";

struct NamedFolder {
  std::string name;
  std::string path;
};

// NAME=PATH, or a JSON object with both.
Result<NamedFolder> read_module(const std::string& text) {
  if (text.starts_with('{')) {
    RUDDER_TRY(const weights::HfConfig object, weights::HfConfig::parse(text, kSetting));
    RUDDER_TRY(std::string name, object.string("name"));
    RUDDER_TRY(std::string path, object.string("path"));
    return NamedFolder{std::move(name), std::move(path)};
  }
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is neither NAME=PATH nor a JSON object", text), kSetting);
  }
  return NamedFolder{text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

void AdapterSettings::declare(SettingsTable& table) {
  table.section("adapters");
  table.add(kSetting, &modules,
            "A LoRA adapter that requests may name as their model, NAME=PATH or JSON with \"name\" "
            "and \"path\": a folder as Hugging Face peft writes it. Repeatable.");
  table.add("max-cpu-loras", &max_cpu_loras, 1, 65536,
            "Adapters that are in memory at once; one more is refused.");
  table.add("lora-root", &root,
            "A folder whose adapters may be loaded over HTTP, by whoever may register steering "
            "modules; empty: none are.");
}

Result<std::unique_ptr<lora::Library>> make_adapters(const step::Capacity& capacity,
                                                     lora::Targets targets, lora::BaseReader base,
                                                     const AdapterSettings& settings,
                                                     const std::string& secret) {
  if (capacity.adapters.empty()) {
    for (const auto& [is_asked, setting] : {std::pair(!settings.modules.empty(), kSetting),
                                            std::pair(!settings.root.empty(), "lora-root")}) {
      if (is_asked) return fail(ErrorCode::kInvalidArgument, "it needs --enable-lora", setting);
    }
    return nullptr;
  }
  const int32_t max_loras = capacity.adapters.num_rows - 1;
  auto library = std::make_unique<lora::Library>(
      std::move(targets),
      lora::LibrarySettings{.limits = {.max_rank = capacity.adapters.max_rank,
                                       .hash_secret = engine::Entropy::hash_key_of(secret)},
                            .max_loras = max_loras,
                            .max_adapters = std::max(settings.max_cpu_loras, max_loras),
                            .root = settings.root,
                            .base = std::move(base)});
  for (const std::string& text : settings.modules) {
    RUDDER_TRY(const NamedFolder module, read_module(text));
    RUDDER_TRY(const lora::Report report, library->load(module.name, module.path, false));
    log_info("adapter {} loaded from {}: {}", module.name, module.path, report.to_text());
  }
  return library;
}

}  // namespace rudder::apps
