#include "rudder/cuda/cublaslt_api.h"

#include <cublas_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>

#include <filesystem>

namespace rudder::cuda {
namespace {

// The major version of the headers that this file was compiled with: another one has another ABI.
std::string library_name() {
  return fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
}

std::vector<std::string> matches(const std::string& pattern) {
  std::vector<std::string> found;
  glob_t result = {};
  if (glob(pattern.c_str(), 0, nullptr, &result) == 0) {
    for (size_t i = 0; i < result.gl_pathc; ++i) found.emplace_back(result.gl_pathv[i]);
  }
  globfree(&result);
  return found;
}

// The first symbol that the library lacks; empty when all are bound.
std::string bind(void* library, CublasLtApi& api) {
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  find(api.create, "cublasLtCreate");
  find(api.destroy, "cublasLtDestroy");
  find(api.version, "cublasLtGetVersion");
  find(api.status_string, "cublasLtGetStatusString");
  find(api.matmul, "cublasLtMatmul");
  find(api.algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(api.algo_check, "cublasLtMatmulAlgoCheck");
  find(api.desc_create, "cublasLtMatmulDescCreate");
  find(api.desc_destroy, "cublasLtMatmulDescDestroy");
  find(api.desc_set, "cublasLtMatmulDescSetAttribute");
  find(api.layout_create, "cublasLtMatrixLayoutCreate");
  find(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(api.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(api.preference_create, "cublasLtMatmulPreferenceCreate");
  find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  return missing;
}

}  // namespace

std::vector<std::string> cublaslt_candidates(const std::string& path) {
  const std::string name = library_name();
  if (!path.empty()) {
    std::error_code error;
    const bool is_folder = std::filesystem::is_directory(path, error);
    return {is_folder ? path + "/" + name : path};
  }
  std::vector<std::string> candidates = {name};
  constexpr std::string_view kFolders[] = {"/usr/local/cuda/lib64",
                                           "/usr/local/cuda-{}*/lib64",
                                           "/usr/local/cuda*/targets/*/lib",
                                           "/usr/local/lib/python3*/*-packages/nvidia/cu{}/lib",
                                           "/usr/lib/python3*/*-packages/nvidia/cu{}/lib",
                                           "/usr/local/lib/python3*/*-packages/nvidia/cublas/lib",
                                           "/opt/*/lib/python3*/site-packages/nvidia/cu{}/lib"};
  for (const std::string_view folder : kFolders) {
    const std::string pattern = fmt::format(fmt::runtime(folder), CUBLAS_VER_MAJOR) + "/" + name;
    for (std::string& found : matches(pattern)) candidates.push_back(std::move(found));
  }
  return candidates;
}

std::string cublaslt_refusal(size_t version) {
  constexpr size_t kMajor = 10'000;
  if (version / kMajor == CUBLAS_VER_MAJOR) return {};
  return fmt::format("it is of version {}, this build needs {}", version / kMajor,
                     CUBLAS_VER_MAJOR);
}

Result<const CublasLtApi*> load_cublaslt(const std::string& path) {
  static CublasLtApi api;
  static bool loaded = false;
  if (loaded) return &api;
  std::string tried;
  for (const std::string& candidate : cublaslt_candidates(path)) {
    void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      tried += fmt::format("\n  {}", why != nullptr ? why : candidate);
      continue;
    }
    const std::string missing = bind(library, api);
    const std::string refusal =
        missing.empty() ? cublaslt_refusal(api.version()) : fmt::format("it has no {}", missing);
    if (refusal.empty()) {
      loaded = true;
      return &api;
    }
    tried += fmt::format("\n  {}: {}", candidate, refusal);
    dlclose(library);
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("the CUDA backend needs {}, which was not found:{}", library_name(), tried),
      "cublaslt-path");
}

}  // namespace rudder::cuda
