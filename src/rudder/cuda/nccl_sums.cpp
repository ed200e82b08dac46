#include "rudder/cuda/nccl_sums.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

namespace rudder::cuda {
namespace {

// NCCL's ABI, which has been the same since version 2 (nccl.h).
using NcclResult = int;
using NcclComm = void*;
constexpr NcclResult kNcclSuccess = 0;
constexpr int kNcclBfloat16 = 9;
constexpr int kNcclSum = 0;

}  // namespace

struct NcclSums::Library {
  void* handle = nullptr;
  NcclResult (*get_version)(int*) = nullptr;
  const char* (*error_string)(NcclResult) = nullptr;
  NcclResult (*init_all)(NcclComm*, int, const int*) = nullptr;
  NcclResult (*all_reduce)(const void*, void*, size_t, int, int, NcclComm, cudaStream_t) = nullptr;
  NcclResult (*destroy)(NcclComm) = nullptr;
  std::vector<NcclComm> comms;

  Result<void> check(NcclResult result) const {
    if (result == kNcclSuccess) return {};
    return fail(ErrorCode::kInternal, fmt::format("NCCL: {}", error_string(result)));
  }

  Result<void> open() {
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return fail(ErrorCode::kNotFound, dlerror());
    const auto find = [&](auto& function, const char* symbol) -> Result<void> {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      if (function != nullptr) return {};
      return fail(ErrorCode::kNotFound, fmt::format("libnccl.so.2 has no {}", symbol));
    };
    RUDDER_TRY_VOID(find(get_version, "ncclGetVersion"));
    RUDDER_TRY_VOID(find(error_string, "ncclGetErrorString"));
    RUDDER_TRY_VOID(find(init_all, "ncclCommInitAll"));
    RUDDER_TRY_VOID(find(all_reduce, "ncclAllReduce"));
    return find(destroy, "ncclCommDestroy");
  }
};

NcclSums::NcclSums(std::unique_ptr<Library> library) : library_(std::move(library)) {}

Result<std::unique_ptr<NcclSums>> NcclSums::make(std::span<const int32_t> devices) {
  auto library = std::make_unique<Library>();
  RUDDER_TRY_VOID(library->open());
  library->comms.resize(devices.size());
  RUDDER_TRY_VOID(library->check(
      library->init_all(library->comms.data(), static_cast<int>(devices.size()), devices.data())));
  return std::unique_ptr<NcclSums>(new NcclSums(std::move(library)));
}

NcclSums::~NcclSums() {
  for (const NcclComm comm : library_->comms) library_->destroy(comm);
}

std::string NcclSums::version() const {
  int version = 0;
  library_->get_version(&version);
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

Result<void> NcclSums::sum(int32_t rank, void* data, int64_t count, cudaStream_t stream) {
  return library_->check(library_->all_reduce(data, data, static_cast<size_t>(count), kNcclBfloat16,
                                              kNcclSum, library_->comms[static_cast<size_t>(rank)],
                                              stream));
}

}  // namespace rudder::cuda
