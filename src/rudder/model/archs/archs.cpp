#include "rudder/model/archs/archs.h"

#include <fmt/format.h>

#include <array>

namespace rudder::model {

std::span<const Architecture> architectures() {
  static const std::array kTable = {llama(),  mistral(), qwen2(), qwen3(),
                                    gemma2(), gemma3(),  phi3(),  gemma3_multimodal(),
                                    olmo2()};
  return kTable;
}

Result<const Architecture*> find_architecture(std::string_view name) {
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == name) return &architecture;
    if (!known.empty()) known += ", ";
    known += architecture.name;
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("the architecture '{}' is not one of {}", name, known));
}

}  // namespace rudder::model
