#include "rudder/lora/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace rudder::lora {

std::vector<std::shared_ptr<const NamedAdapter>>::const_iterator Library::locate(
    std::string_view name) const {
  return std::ranges::find_if(adapters_, [&](const auto& one) { return one->name == name; });
}

Result<void> Library::check_room(std::string_view name, bool replaces) const {
  const bool is_taken = locate(name) != adapters_.end();
  if (is_taken && !replaces) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("The lora adapter '{}' has already been loaded. If you want to load "
                            "the adapter in place, set 'load_inplace' to True.",
                            name),
                "lora_name");
  }
  if (!is_taken && std::cmp_greater_equal(adapters_.size(), settings_.max_adapters)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} adapters are loaded, as many as --max-cpu-loras allows", adapters_.size()),
        "max-cpu-loras");
  }
  return {};
}

Result<Report> Library::load(const std::string& name, const std::string& folder, bool replaces) {
  {
    const std::lock_guard lock(mutex_);
    RUDDER_TRY_VOID(check_room(name, replaces));
  }
  RUDDER_TRY(ReadAdapter read,
             read_peft_folder(folder, targets_, settings_.limits, settings_.base));
  auto added = std::make_shared<const NamedAdapter>(name, folder, std::move(read.adapter));
  const std::lock_guard lock(mutex_);
  RUDDER_TRY_VOID(check_room(name, replaces));
  const auto at = locate(name);
  if (at == adapters_.end()) {
    adapters_.push_back(std::move(added));
  } else {
    retired_.emplace_back(*at);
    adapters_[static_cast<size_t>(at - adapters_.begin())] = std::move(added);
  }
  return std::move(read.report);
}

Result<void> Library::unload(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto at = locate(name);
  if (at == adapters_.end()) {
    return fail(ErrorCode::kNotFound, fmt::format("The lora adapter '{}' cannot be found.", name),
                "lora_name");
  }
  retired_.emplace_back(*at);
  adapters_.erase(at);
  return {};
}

Result<void> Library::check_client_path(const std::string& folder) const {
  const auto refuse = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), "lora_path");
  };
  if (settings_.root.empty()) {
    return refuse("adapters are loaded over HTTP where --lora-root names a folder for them");
  }
  std::error_code error;
  const auto root = std::filesystem::canonical(settings_.root, error);
  if (error) return refuse("the folder of --lora-root is not there");
  const auto path = std::filesystem::weakly_canonical(folder, error);
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  if (error || end != root.end()) {
    return refuse(fmt::format("'{}' is not below the folder of --lora-root", folder));
  }
  return {};
}

std::shared_ptr<const NamedAdapter> Library::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto at = locate(name);
  return at == adapters_.end() ? nullptr : *at;
}

std::vector<std::shared_ptr<const NamedAdapter>> Library::all() const {
  const std::lock_guard lock(mutex_);
  return adapters_;
}

std::vector<std::shared_ptr<const NamedAdapter>> Library::in_use() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const NamedAdapter>> out = adapters_;
  std::erase_if(retired_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : retired_) {
    if (auto held = weak.lock()) out.push_back(std::move(held));
  }
  return out;
}

}  // namespace rudder::lora
