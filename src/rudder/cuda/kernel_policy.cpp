#include "rudder/cuda/kernel_policy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "rudder/base/json.h"
#include "rudder/base/log.h"

namespace rudder::cuda {
namespace {

namespace json = boost::json;
using tensor::DType;

constexpr int kFormat = 1;
constexpr std::string_view kKernelNames[] = {"gemv", "unit", "outer", "ring", "low", "tile"};

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

// A member of `object`, as it was written; a wrong type is an Error that names it.
Result<int64_t> integer(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_int64()) {
    return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is no integer", name), "kernel policy");
  }
  return value->get_int64();
}

Result<std::string> text(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) {
    return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is no text", name), "kernel policy");
  }
  return std::string(value->get_string());
}

Result<DType> dtype(const json::object& object, std::string_view name) {
  RUDDER_TRY(const std::string value, text(object, name));
  return tensor::parse_dtype(value);
}

Result<ProductKernel> kernel(const json::object& object) {
  RUDDER_TRY(const std::string name, text(object, "kernel"));
  for (size_t i = 0; i < std::size(kKernelNames); ++i) {
    if (kKernelNames[i] == name) return static_cast<ProductKernel>(i);
  }
  return fail(ErrorCode::kCorruptFile, fmt::format("there is no kernel '{}'", name),
              "kernel policy");
}

Result<std::array<uint64_t, 8>> algorithm(const json::object& object) {
  RUDDER_TRY(const std::string digits, text(object, "algorithm"));
  std::array<uint64_t, 8> out = {};
  if (digits.size() != 16 * out.size()) {
    return fail(ErrorCode::kCorruptFile, "'algorithm' is not 128 digits", "kernel policy");
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const char* begin = digits.data() + 16 * i;
    const auto [end, error] = std::from_chars(begin, begin + 16, out[i], 16);
    if (error != std::errc() || end != begin + 16) {
      return fail(ErrorCode::kCorruptFile, "'algorithm' is not hexadecimal", "kernel policy");
    }
  }
  return out;
}

Result<std::pair<PolicyKey, PolicyEntry>> parse_entry(const json::object& object) {
  PolicyKey key;
  RUDDER_TRY(key.out, integer(object, "out"));
  RUDDER_TRY(key.in, integer(object, "in"));
  RUDDER_TRY(key.dtype, dtype(object, "dtype"));
  RUDDER_TRY(key.out_dtype, dtype(object, "out_dtype"));
  RUDDER_TRY(const int64_t bias, integer(object, "bias"));
  RUDDER_TRY(key.bucket, integer(object, "bucket"));
  if (object.contains("low")) {
    RUDDER_TRY(key.low, integer(object, "low"));
  }
  key.bias = bias != 0;
  PolicyEntry entry;
  RUDDER_TRY(entry.kernel, kernel(object));
  RUDDER_TRY(entry.algorithm, algorithm(object));
  if (const json::value* time = object.if_contains("us"); time != nullptr && time->is_number()) {
    entry.microseconds = time->to_number<double>();
  }
  return std::pair(key, entry);
}

}  // namespace

Result<KernelPolicy> KernelPolicy::parse(std::string_view content, const PolicyIdentity& identity) {
  RUDDER_TRY(const json::value document, parse_json(content, "kernel policy"));
  if (!document.is_object()) {
    return fail(ErrorCode::kCorruptFile, "it is no object", "kernel policy");
  }
  const json::object& root = document.get_object();
  RUDDER_TRY(const int64_t format, integer(root, "format"));
  if (format != kFormat) {
    return fail(ErrorCode::kUnsupported, fmt::format("its format is {}, not {}", format, kFormat),
                "kernel policy");
  }
  PolicyIdentity found;
  RUDDER_TRY(found.device, text(root, "device"));
  RUDDER_TRY(const int64_t driver, integer(root, "driver"));
  RUDDER_TRY(found.library, integer(root, "library"));
  RUDDER_TRY(const int64_t kernels, integer(root, "kernels"));
  found.driver = static_cast<int>(driver);
  found.kernels = static_cast<int>(kernels);
  if (found != identity) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("it was measured on {} (driver {}, cuBLASLt {}, kernels {}), this is {} "
                    "(driver {}, cuBLASLt {}, kernels {})",
                    found.device, found.driver, found.library, found.kernels, identity.device,
                    identity.driver, identity.library, identity.kernels),
        "kernel policy");
  }
  const json::value* entries = root.if_contains("entries");
  if (entries == nullptr || !entries->is_array()) {
    return fail(ErrorCode::kCorruptFile, "'entries' is no array", "kernel policy");
  }
  KernelPolicy policy(identity);
  for (const json::value& value : entries->get_array()) {
    if (!value.is_object()) {
      return fail(ErrorCode::kCorruptFile, "an entry is no object", "kernel policy");
    }
    RUDDER_TRY(const auto entry, parse_entry(value.get_object()));
    policy.set(entry.first, entry.second);
  }
  return policy;
}

std::string KernelPolicy::to_text() const {
  std::string out = "{\"format\": " + std::to_string(kFormat) + ", \"device\": ";
  append_json_string(out, identity_.device);
  out += fmt::format(", \"driver\": {}, \"library\": {}, \"kernels\": {}, \"entries\": [",
                     identity_.driver, identity_.library, identity_.kernels);
  bool first = true;
  for (const auto& [key, entry] : entries_) {
    std::string digits;
    for (const uint64_t word : entry.algorithm) digits += hex(word);
    out += fmt::format(
        "{}\n  {{\"out\": {}, \"in\": {}, \"dtype\": \"{}\", \"out_dtype\": \"{}\", \"bias\": {}, "
        "\"bucket\": {}, {}\"kernel\": \"{}\", \"us\": {:.2f}, \"algorithm\": \"{}\"}}",
        first ? "" : ",", key.out, key.in, tensor::dtype_name(key.dtype),
        tensor::dtype_name(key.out_dtype), key.bias ? 1 : 0, key.bucket,
        key.low == 0 ? "" : fmt::format("\"low\": {}, ", key.low),
        kKernelNames[static_cast<size_t>(entry.kernel)], entry.microseconds, digits);
    first = false;
  }
  return out + "\n]}\n";
}

const PolicyEntry* KernelPolicy::find(const PolicyKey& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void KernelPolicy::set(const PolicyKey& key, const PolicyEntry& entry) {
  entries_[key] = entry;
}

KernelPolicy read_policy(const std::string& path, const PolicyIdentity& identity) {
  std::ifstream in(path);
  if (path.empty() || !in) return KernelPolicy(identity);
  std::ostringstream content;
  content << in.rdbuf();
  Result<KernelPolicy> policy = KernelPolicy::parse(content.str(), identity);
  if (policy) return std::move(*policy);
  log_info("{} is not used: {}", path, policy.error().message);
  return KernelPolicy(identity);
}

Result<void> write_policy(const std::string& path, const KernelPolicy& policy) {
  const std::filesystem::path target(path);
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  static std::atomic<int> num_written = 0;  // ranks write theirs at the same time
  const std::string temporary = fmt::format("{}.{}.{}", path, getpid(), num_written++);
  std::ofstream out(temporary, std::ios::trunc);
  out << policy.to_text();
  out.close();
  if (out) std::filesystem::rename(temporary, target, error);
  if (!out || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    return fail(ErrorCode::kIo, "the kernel policy cannot be written", path);
  }
  return {};
}

}  // namespace rudder::cuda
