// Library: the adapters that clients may name, which a server loads and unloads while it runs. A
// request holds the version that it found; a name may mean another one at once. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/lora/named_adapter.h"
#include "rudder/lora/peft_adapter.h"

namespace rudder::lora {

struct LibrarySettings {
  ReadLimits limits;
  int32_t max_loras = 1;      // that run at once, for the metric
  int32_t max_adapters = 64;  // in memory at once
  std::string root = {};      // clients load adapters below this folder; empty: they load none
  BaseReader base = {};       // outlives the library
};

class Library {
 public:
  Library(Targets targets, LibrarySettings settings)
      : targets_(std::move(targets)), settings_(std::move(settings)) {}

  // Reads the folder and gives its adapter the name; `replaces`: also where another one has it. The
  // last of several that load under one name at once has it. kAlreadyExists is told as
  // kInvalidArgument ("lora_name"), a library that is full likewise ("max-cpu-loras"); other errors
  // are those of read_peft_folder().
  Result<Report> load(const std::string& name, const std::string& folder, bool replaces);
  // kNotFound: no adapter has the name. Requests that hold it go on.
  Result<void> unload(std::string_view name);

  // kInvalidArgument ("lora_path"): clients may not load adapters from there.
  Result<void> check_client_path(const std::string& folder) const;
  bool takes_client_paths() const { return !settings_.root.empty(); }

  std::shared_ptr<const NamedAdapter> find(std::string_view name) const;  // null: there is none
  std::vector<std::shared_ptr<const NamedAdapter>> all() const;           // in order of loading
  // Those and the versions that requests still hold.
  std::vector<std::shared_ptr<const NamedAdapter>> in_use() const;
  int32_t max_loras() const { return settings_.max_loras; }
  const Targets& targets() const { return targets_; }

 private:
  std::vector<std::shared_ptr<const NamedAdapter>>::const_iterator locate(
      std::string_view name) const;
  Result<void> check_room(std::string_view name, bool replaces) const;

  const Targets targets_;
  const LibrarySettings settings_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const NamedAdapter>> adapters_;
  mutable std::vector<std::weak_ptr<const NamedAdapter>> retired_;
};

}  // namespace rudder::lora
