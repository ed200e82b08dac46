// The functions of cuBLASLt that Rudder calls, looked up in its shared library at start. The
// library is half a gigabyte and only machines with a GPU have it, so the binary is not linked
// against it. There is one table in the process, loaded once by the thread that makes the backend;
// any thread may call through it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <string>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::cuda {

struct CublasLtApi {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
};

// Where the library is looked for, in order: `path` (a file or a folder) alone when it is not
// empty; else by name, which finds LD_LIBRARY_PATH and the binary's own folder, then the toolkit's
// folders, then NVIDIA's Python packages.
std::vector<std::string> cublaslt_candidates(const std::string& path);

// Empty when a library of this version (cublasLtGetVersion) has the ABI of the headers that this
// build was made with, else why not.
std::string cublaslt_refusal(size_t version);

// Never unloaded. An Error names the library and every place that was tried, with what is wrong
// there: not to be opened, a function that is missing, another major version.
Result<const CublasLtApi*> load_cublaslt(const std::string& path);

}  // namespace rudder::cuda
