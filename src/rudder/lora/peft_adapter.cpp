#include "rudder/lora/peft_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/siphash.h"
#include "rudder/lora/dora.h"
#include "rudder/lora/peft_config.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::lora {
namespace {

using tensor::DType;
using tensor::View;
using weights::Safetensors;
using weights::TensorEntry;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxTensorBytes = uint64_t{16} << 30;
constexpr size_t kAlign = 64;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffixA = ".lora_A.weight";
constexpr std::string_view kSuffixB = ".lora_B.weight";
constexpr std::string_view kSuffixMagnitude = ".lora_magnitude_vector";

// The tensors of one module.
struct ModuleEntries {
  const TensorEntry* a = nullptr;
  const TensorEntry* b = nullptr;
  const TensorEntry* magnitude = nullptr;  // of DoRA
};

// From "layers." on: what is in front differs between a model and the part of another that it is.
std::string_view layer_path(std::string_view module) {
  const size_t at = module.find("layers.");
  const bool is_part = at != std::string_view::npos && (at == 0 || module[at - 1] == '.');
  return is_part ? module.substr(at) : module;
}

// What of a module's path may stand in front of its layers.
bool is_text_model(std::string_view module) {
  const std::string_view front = module.substr(0, module.size() - layer_path(module).size());
  constexpr std::array kFronts = {"", "model.", "model.language_model.", "language_model.model.",
                                  "language_model."};
  return std::ranges::find(kFronts, front) != kFronts.end();
}

// Why a tensor that is of no pair is refused.
std::string_view reason_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kReasons = {{
      {".experts.", "adapters of experts are not served"},
      {"lora_embedding_", "adapters of embeddings are not served"},
      {"lora_magnitude_vector", "it is a magnitude of DoRA, and use_dora is not set"},
      {"modules_to_save", "whole modules of an adapter are not served"},
      {"lm_head", "adapters of the output head are not served"},
      {".bias", "biases of an adapter are not served"},
      {"", "it is of no product of this model"},
  }};
  for (const auto& [part, reason] : kReasons) {
    if (name.find(part) != std::string_view::npos) return reason;
  }
  return kReasons.back().second;
}

class Reader {
 public:
  Reader(const Targets& targets, const ReadLimits& limits, const PeftConfig& config,
         const Safetensors& file, std::string file_name, const BaseReader& base)
      : targets_(targets),
        limits_(limits),
        config_(config),
        file_(file),
        file_name_(std::move(file_name)),
        base_(base) {}

  Result<ReadAdapter> read() {
    RUDDER_TRY_VOID(pair_tensors());
    ReadAdapter out;
    auto adapter = std::make_shared<Adapter>();
    adapter->memory.resize(memory_bytes());
    for (const auto& [target, entries] : pairs_) {
      RUDDER_TRY(Delta delta, read_delta(target, entries, *adapter));
      adapter->max_rank = std::max(adapter->max_rank, static_cast<int32_t>(delta.rank()));
      adapter->deltas.push_back(std::move(delta));
      out.report.matched.push_back(targets_[static_cast<size_t>(target)].name);
    }
    adapter->key = key_of(*adapter);
    out.report.ignored = config_.ignored_keys();
    out.adapter = std::move(adapter);
    return out;
  }

 private:
  tl::unexpected<Error> corrupt(std::string message, std::string_view tensor) const {
    return fail(ErrorCode::kCorruptFile, std::move(message),
                fmt::format("{}: tensor '{}'", file_name_, tensor));
  }

  // Finds the module of every tensor.
  Result<void> pair_tensors() {
    std::map<std::string_view, int32_t> by_path;
    for (size_t i = 0; i < targets_.size(); ++i) {
      by_path.emplace(layer_path(targets_[i].name), static_cast<int32_t>(i));
    }
    std::vector<std::string> unmatched;
    for (const TensorEntry& entry : file_.tensors) {
      const auto found = find_target(entry.name, by_path);
      if (!found) {
        unmatched.push_back(fmt::format("{} ({})", entry.name, reason_of(entry.name)));
        continue;
      }
      ModuleEntries& of_module = pairs_[*found];
      const TensorEntry*& stored = entry.name.ends_with(kSuffixA)   ? of_module.a
                                   : entry.name.ends_with(kSuffixB) ? of_module.b
                                                                    : of_module.magnitude;
      if (stored != nullptr) {
        return corrupt(fmt::format("'{}' is of the same product", stored->name), entry.name);
      }
      stored = &entry;
    }
    if (!unmatched.empty()) return refuse_unmatched(std::move(unmatched));
    if (pairs_.empty()) {
      return fail(ErrorCode::kCorruptFile, "it holds no tensor of an adapter", file_name_);
    }
    for (const auto& [target, entries] : pairs_) RUDDER_TRY_VOID(check_whole(target, entries));
    return {};
  }

  Result<void> check_whole(int32_t target, const ModuleEntries& entries) const {
    const char* missing = nullptr;
    if (config_.has_magnitudes() && entries.magnitude == nullptr) {
      missing = "lora_magnitude_vector";
    }
    if (entries.b == nullptr) missing = "lora_B";
    if (entries.a == nullptr) missing = "lora_A";
    if (missing == nullptr) return {};
    for (const TensorEntry* const entry : {entries.a, entries.b, entries.magnitude}) {
      if (entry != nullptr) return corrupt(fmt::format("its {} is missing", missing), entry->name);
    }
    RUDDER_CHECK(false, "target {} has no tensor", target);
    return {};
  }

  tl::unexpected<Error> refuse_unmatched(std::vector<std::string> unmatched) const {
    constexpr size_t kTold = 8;
    const size_t count = unmatched.size();
    unmatched.resize(std::min(count, kTold));
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} of {} tensors have no product to change: {}{}", count,
                            file_.tensors.size(), fmt::join(unmatched, ", "),
                            count > kTold ? fmt::format(" and {} more", count - kTold) : ""),
                file_name_);
  }

  std::optional<int32_t> find_target(std::string_view name,
                                     const std::map<std::string_view, int32_t>& by_path) const {
    if (!name.starts_with(kPrefix)) return std::nullopt;
    std::string_view module = name.substr(kPrefix.size());
    if (module.ends_with(kSuffixA) || module.ends_with(kSuffixB)) {
      module.remove_suffix(kSuffixA.size());
    } else if (config_.has_magnitudes() && module.ends_with(kSuffixMagnitude)) {
      module.remove_suffix(kSuffixMagnitude.size());
    } else {
      return std::nullopt;
    }
    if (!is_text_model(module)) return std::nullopt;
    const auto found = by_path.find(layer_path(module));
    return found == by_path.end() ? std::nullopt : std::optional(found->second);
  }

  size_t memory_bytes() const {
    size_t bytes = kAlign;
    for (const auto& [target, entries] : pairs_) {
      for (const TensorEntry* const entry : {entries.a, entries.b}) {
        bytes += (entry->bytes() + kAlign - 1) / kAlign * kAlign;
      }
    }
    return bytes;
  }

  Result<Delta> read_delta(int32_t index, const ModuleEntries& entries, Adapter& adapter) {
    const Target& target = targets_[static_cast<size_t>(index)];
    std::string_view module = std::string_view(entries.a->name).substr(kPrefix.size());
    module.remove_suffix(kSuffixA.size());
    RUDDER_TRY(const int64_t rank, config_.rank_of(module));
    Delta delta{.target = index, .scale = 1, .a = {}, .b = {}};
    RUDDER_TRY(delta.scale, config_.scale_of(module));
    if (rank > limits_.max_rank) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("LoRA rank {} is greater than max_lora_rank {}.", rank, limits_.max_rank),
          fmt::format("{}: tensor '{}'", file_name_, entries.a->name));
    }
    RUDDER_TRY(delta.a, take(*entries.a, {rank, target.in}, adapter.memory, used_));
    RUDDER_TRY(delta.b, take(*entries.b, {target.out, rank}, adapter.memory, used_));
    if (entries.magnitude != nullptr) {
      RUDDER_TRY_VOID(scale_rows(target, *entries.magnitude, delta));
    }
    return delta;
  }

  Result<void> scale_rows(const Target& target, const TensorEntry& entry, Delta& delta) const {
    if (base_ == nullptr) {
      return fail(ErrorCode::kUnsupported, "DoRA wants the model's own weights, which are not here",
                  fmt::format("{}: tensor '{}'", file_name_, entry.name));
    }
    std::vector<std::byte> memory(entry.bytes() + 2 * kAlign);
    size_t used = 0;
    RUDDER_TRY(const View magnitudes, take(entry, {target.out}, memory, used));
    Result<BaseTensors> base = base_(target);
    Result<void> done = base ? set_gains(*base, magnitudes, delta) : Result<void>();
    if (base && done) return {};
    Error error = base ? std::move(done.error()) : std::move(base.error());
    error.where = fmt::format("{}: tensor '{}'{}{}", file_name_, entry.name,
                              error.where.empty() ? "" : ": ", error.where);
    return tl::unexpected(std::move(error));
  }

  // Copies the tensor, which is to have that shape, to `memory`, of which `used` bytes are.
  Result<View> take(const TensorEntry& entry, const tensor::Shape& shape,
                    std::vector<std::byte>& memory, size_t& used) const {
    weights::TensorShape wanted;
    for (int i = 0; i < shape.rank(); ++i) {
      wanted.dims[wanted.rank++] = static_cast<uint64_t>(shape[i]);
    }
    if (entry.shape != wanted) {
      return corrupt(
          fmt::format("its shape is {}, not {}", entry.shape.to_string(), wanted.to_string()),
          entry.name);
    }
    if (entry.dtype != DType::kF32 && entry.dtype != DType::kF16 && entry.dtype != DType::kBF16) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("tensors of {} are not served", tensor::dtype_name(entry.dtype)),
                  fmt::format("{}: tensor '{}'", file_name_, entry.name));
    }
    std::byte* const base = memory.data();
    const size_t skew = reinterpret_cast<uintptr_t>(base) % kAlign;
    std::byte* const to = base + (skew == 0 ? 0 : kAlign - skew) + used;
    used += (entry.bytes() + kAlign - 1) / kAlign * kAlign;
    const std::span<const std::byte> bytes = file_.bytes_of(entry);
    std::memcpy(to, bytes.data(), bytes.size());
    const View view{to, entry.dtype, shape};
    if (!is_finite(view)) return corrupt("it holds values that are not finite", entry.name);
    return view;
  }

  static bool is_finite(const View& view) {
    const auto all = [&](auto* values) {
      return std::all_of(values, values + view.shape.numel(), [](auto value) {
        if constexpr (std::is_same_v<decltype(value), float>) {
          return std::isfinite(value);
        } else {
          return std::isfinite(tensor::to_float(value));
        }
      });
    };
    if (view.dtype == DType::kF32) return all(view.as<float>());
    if (view.dtype == DType::kF16) return all(view.as<tensor::F16>());
    return all(view.as<tensor::BF16>());
  }

  AdapterKey key_of(const Adapter& adapter) const {
    SipHash128 hash(limits_.hash_secret);
    for (const Delta& delta : adapter.deltas) {
      hash.update(static_cast<uint64_t>(delta.target));
      hash.update(std::as_bytes(std::span(&delta.scale, 1)));
      for (const View& matrix : {delta.a, delta.b}) {
        hash.update(static_cast<uint64_t>(matrix.dtype));
        hash.update(static_cast<uint64_t>(matrix.bytes()));
        hash.update(std::span(static_cast<const std::byte*>(matrix.data), matrix.bytes()));
      }
      for (const std::vector<float>* const of_rows : {&delta.gains, &delta.offsets}) {
        hash.update(static_cast<uint64_t>(of_rows->size()));
        hash.update(std::as_bytes(std::span(*of_rows)));
      }
    }
    return hash.finish();
  }

  const Targets& targets_;
  const ReadLimits& limits_;
  const PeftConfig& config_;
  const Safetensors& file_;
  const std::string file_name_;
  const BaseReader& base_;
  std::map<int32_t, ModuleEntries> pairs_;  // by target
  size_t used_ = 0;                         // of the adapter's memory
};

}  // namespace

std::string Report::to_text() const {
  return fmt::format("{} modules matched, none unmatched, {} keys ignored ({})", matched.size(),
                     ignored.size(), fmt::join(ignored, ", "));
}

Result<ReadAdapter> read_peft(const AdapterFile& config, const AdapterFile& tensors,
                              const Targets& targets, const ReadLimits& limits,
                              const BaseReader& base) {
  const std::string_view text(reinterpret_cast<const char*>(config.bytes.data()),
                              config.bytes.size());
  RUDDER_TRY(const PeftConfig parsed, PeftConfig::parse(text, config.name));
  RUDDER_TRY(const Safetensors file, weights::parse_safetensors(tensors.bytes, tensors.name));
  return Reader(targets, limits, parsed, file, tensors.name, base).read();
}

Result<ReadAdapter> read_peft_folder(const std::string& folder, const Targets& targets,
                                     const ReadLimits& limits, const BaseReader& base) {
  const std::filesystem::path directory(folder);
  const auto path_of = [&](const char* name) { return (directory / name).string(); };
  Result<std::string> config =
      weights::read_text_file(path_of("adapter_config.json"), kMaxConfigBytes);
  if (!config && config.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, fmt::format("No adapter found for {}", folder), folder);
  }
  if (!config) return tl::unexpected(std::move(config.error()));
  Result<std::string> tensors =
      weights::read_text_file(path_of("adapter_model.safetensors"), kMaxTensorBytes);
  std::error_code ignored;
  if (!tensors && std::filesystem::exists(directory / "adapter_model.bin", ignored)) {
    return fail(ErrorCode::kUnsupported,
                "pickled weights are not read: save the adapter as safetensors",
                path_of("adapter_model.bin"));
  }
  if (!tensors) return tl::unexpected(std::move(tensors.error()));
  return read_peft({std::as_bytes(std::span(*config)), path_of("adapter_config.json")},
                   {std::as_bytes(std::span(*tensors)), path_of("adapter_model.safetensors")},
                   targets, limits, base);
}

}  // namespace rudder::lora
