// NamedAdapter: one version of an adapter under the name that clients know it by. Requests hold the
// version that they began with; another one may have the name meanwhile. The counts are the
// engine's, told as a metric. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "rudder/lora/adapter.h"

namespace rudder::lora {

struct NamedAdapter {
  NamedAdapter(std::string given_name, std::string given_path,
               std::shared_ptr<const Adapter> loaded)
      : name(std::move(given_name)), path(std::move(given_path)), adapter(std::move(loaded)) {}

  const std::string name;
  const std::string path;  // of the folder that it was read from
  const std::shared_ptr<const Adapter> adapter;
  mutable std::atomic<int64_t> waiting{0};  // requests that wait for a row of the adapter table
  mutable std::atomic<int64_t> running{0};  // that hold one
};

}  // namespace rudder::lora
