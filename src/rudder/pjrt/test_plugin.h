// Where the plugin lies that tests compile with: RUDDER_PJRT_PLUGIN, or else XLA's for CPUs, which
// tools/setup.sh test installs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace rudder::pjrt {

// Tests run from the repository's root. Empty: it is not installed, and the test fails.
inline std::string test_plugin() {
  if (const char* const path = std::getenv("RUDDER_PJRT_PLUGIN")) return path;
  const std::filesystem::path root = ".venv-pjrt/lib";
  std::error_code error;
  for (const auto& python : std::filesystem::directory_iterator(root, error)) {
    const auto path = python.path() / "site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
    if (std::filesystem::exists(path)) return path.string();
  }
  return {};
}

}  // namespace rudder::pjrt
