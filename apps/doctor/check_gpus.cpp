#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "doctor/findings.h"

namespace rudder::apps {
namespace {

// The parts of the driver's interface that a binary without CUDA can ask too; its numbers are
// fixed.
struct Driver {
  int (*init)(unsigned int flags) = nullptr;
  int (*version)(int* version) = nullptr;
  int (*count)(int* count) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*name)(char* name, int size, int device) = nullptr;
  int (*total_memory)(size_t* bytes, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
  int (*error_name)(int error, const char** text) = nullptr;
};

constexpr int kMajor = 75;  // attributes: the compute capability
constexpr int kMinor = 76;
constexpr int kHopper = 9;
constexpr int kNoDevice = 100;

// Empty, or why there is no driver.
std::string bind_driver(Driver& driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    const std::string_view why = reason == nullptr ? "" : reason;
    if (why.find("No such file") != std::string_view::npos) {
      return "no NVIDIA driver (libcuda.so.1)";
    }
    return fmt::format("the NVIDIA driver cannot be loaded: {}", why);
  }
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  find(driver.init, "cuInit");
  find(driver.version, "cuDriverGetVersion");
  find(driver.count, "cuDeviceGetCount");
  find(driver.device, "cuDeviceGet");
  find(driver.name, "cuDeviceGetName");
  find(driver.total_memory, "cuDeviceTotalMem_v2");
  find(driver.attribute, "cuDeviceGetAttribute");
  find(driver.error_name, "cuGetErrorName");
  return missing.empty() ? "" : fmt::format("libcuda.so.1 is no NVIDIA driver: no {}", missing);
}

void describe_gpu(const Driver& driver, int ordinal, bool is_wanted, Findings& findings) {
  int device = 0;
  std::array<char, 256> name = {};
  size_t bytes = 0;
  int major = 0;
  int minor = 0;
  if (driver.device(&device, ordinal) != 0 ||
      driver.name(name.data(), static_cast<int>(name.size()) - 1, device) != 0 ||
      driver.total_memory(&bytes, device) != 0 || driver.attribute(&major, kMajor, device) != 0 ||
      driver.attribute(&minor, kMinor, device) != 0) {
    findings.push_back({is_wanted ? Verdict::kFails : Verdict::kNote, "gpu",
                        fmt::format("GPU {} does not say what it is", ordinal)});
    return;
  }
  const bool is_hopper = major == kHopper;
  findings.push_back({is_hopper   ? Verdict::kFine
                      : is_wanted ? Verdict::kFails
                                  : Verdict::kNote,
                      "gpu",
                      fmt::format("{}: {}, {:.0f} GiB, compute capability {}.{}{}", ordinal,
                                  name.data(), static_cast<double>(bytes) / (1 << 30), major, minor,
                                  is_hopper ? "" : "; kernels are for Hopper (9.0) alone")});
}

std::string permission_hint() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored)
             ? ""
             : "; /dev/nvidiactl is missing: a container needs the GPUs passed in, a systemd unit "
               "PrivateDevices=no";
}

}  // namespace

void check_gpus(const std::string& device, Findings& findings) {
  const bool is_wanted = device == "cuda";
  const Verdict worse = is_wanted ? Verdict::kFails : Verdict::kNote;
  if (!RUDDER_HAS_CUDA) {
    findings.push_back({is_wanted ? Verdict::kFails : Verdict::kFine, "backend",
                        is_wanted ? "this binary was built without CUDA (nvcc was not there), and "
                                    "--device cuda asks for it"
                                  : "CPU alone: this binary was built without CUDA"});
  }
  Driver driver;
  if (std::string why = bind_driver(driver); !why.empty()) {
    findings.push_back(
        {RUDDER_HAS_CUDA || is_wanted ? worse : Verdict::kFine, "driver", std::move(why)});
    return;
  }
  if (const int error = driver.init(0); error != 0) {
    const char* name = nullptr;
    driver.error_name(error, &name);
    findings.push_back({error == kNoDevice && !is_wanted ? Verdict::kFine : worse, "driver",
                        fmt::format("the NVIDIA driver does not start: {}{}",
                                    name == nullptr ? "unknown error" : name, permission_hint())});
    return;
  }
  int version = 0;
  int count = 0;
  driver.version(&version);
  const int count_error = driver.count(&count);
  findings.push_back(
      {Verdict::kFine, "driver",
       fmt::format("NVIDIA, for CUDA up to {}.{}", version / 1000, version % 1000 / 10)});
  if (count_error != 0) count = 0;
  if (count == 0) findings.push_back({worse, "gpu", "none is visible (CUDA_VISIBLE_DEVICES?)"});
  for (int i = 0; i < count; ++i) describe_gpu(driver, i, is_wanted, findings);
}

}  // namespace rudder::apps
