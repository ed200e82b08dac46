// Where the plugin lies that tests compile with: RUDDER_PJRT_PLUGIN, or else XLA's for CPUs, which
// tools/setup.sh test installs.
#pragma once

#include <filesystem>
#include <string>

#include "rudder/base/settings.h"

namespace rudder::pjrt {

// Tests run from the repository's root. Empty: it is not installed, and the test fails.
inline std::string test_plugin() {
  const std::string named = environment_value("RUDDER_PJRT_PLUGIN");
  if (!named.empty()) return named;
  const std::filesystem::path root = ".venv-pjrt/lib";
  std::error_code error;
  for (const auto& python : std::filesystem::directory_iterator(root, error)) {
    const auto path = python.path() / "site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
    if (std::filesystem::exists(path)) return path.string();
  }
  return {};
}

}  // namespace rudder::pjrt
