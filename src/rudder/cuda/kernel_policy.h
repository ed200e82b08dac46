// KernelPolicy: which kernel multiplies which shape of weight, as measured on this machine. A file
// keeps it between starts, so that only the first start measures. Plain data; the thread that loads
// the model uses it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/tensor/dtype.h"

namespace rudder::cuda {

// What the measurements hold for. Another one has other kernels, or other times for them.
struct PolicyIdentity {
  std::string device;   // "NVIDIA H100 80GB HBM3"
  int driver = 0;       // cudaDriverGetVersion
  int64_t library = 0;  // cublasLtGetVersion
  int kernels = 0;      // kOwnKernelsVersion

  bool operator==(const PolicyIdentity&) const = default;
};
// Raised when our own kernels of products change, or how all are measured.
constexpr int kOwnKernelsVersion = 13;

struct PolicyKey {
  int64_t out = 0;
  int64_t in = 0;
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::DType out_dtype = tensor::DType::kBF16;
  bool bias = false;
  int64_t bucket = 0;  // of tokens: token_buckets.h
  int64_t low = 0;     // low_id() of the weight; `dtype` is then that of x

  bool operator<(const PolicyKey& other) const {
    return std::tie(out, in, dtype, out_dtype, bias, bucket, low) <
           std::tie(other.out, other.in, other.dtype, other.out_dtype, other.bias, other.bucket,
                    other.low);
  }
};

enum class ProductKernel : uint8_t {
  kGemv,   // our own, for few tokens
  kUnit,   // the library's; fp8 scales are applied by a kernel of ours after it
  kOuter,  // the library's, with fp8 scales
  kRing,   // our own, whose weights are fetched ahead
  kLow,    // our own, of low-bit weights
  kTile,   // our own, for many tokens, with the sums of kRing
};

struct PolicyEntry {
  ProductKernel kernel = ProductKernel::kUnit;
  // The library's; of kGemv its variant, of kRing, kLow and kTile its shape, then zeros.
  std::array<uint64_t, 8> algorithm = {};
  double microseconds = 0;  // with a pause after it; 0: not measured
};

class KernelPolicy {
 public:
  explicit KernelPolicy(PolicyIdentity identity) : identity_(std::move(identity)) {}

  // An Error: the text is no policy (kCorruptFile), or one of another machine (kUnsupported, which
  // says what differs).
  static Result<KernelPolicy> parse(std::string_view text, const PolicyIdentity& identity);
  std::string to_text() const;

  const PolicyEntry* find(const PolicyKey& key) const;
  void set(const PolicyKey& key, const PolicyEntry& entry);
  size_t size() const { return entries_.size(); }

 private:
  PolicyIdentity identity_;
  std::map<PolicyKey, PolicyEntry> entries_;
};

// The file, if there is one and it is of this machine; else an empty policy. Says in the log why a
// file was not taken.
KernelPolicy read_policy(const std::string& path, const PolicyIdentity& identity);
// By way of a temporary file, so that a reader sees the old one or the new one. Makes the folder.
Result<void> write_policy(const std::string& path, const KernelPolicy& policy);

}  // namespace rudder::cuda
