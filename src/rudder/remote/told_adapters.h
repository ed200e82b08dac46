// Adapters on their way to an engine process, and there. The front tells a process the content of
// an adapter in front of the first request that names it, and says when nobody may name it any
// more: so files that have changed since they were read change nothing, and a process that is
// started again has what the one before it had. Neither class is safe by itself.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "rudder/base/result.h"
#include "rudder/lora/named_adapter.h"
#include "rudder/remote/messages.h"

namespace rudder::remote {

// What one process has, as the front knows it.
class ToldAdapters {
 public:
  using Send = std::function<void(const ToEngine& message)>;

  // Sends the content where the process does not have it.
  void tell(const std::shared_ptr<const lora::NamedAdapter>& adapter, const Send& send);
  // Those that neither the library nor a request holds any more.
  void forget_unused(const Send& send);
  void clear() { told_.clear(); }  // another process begins

 private:
  std::map<lora::AdapterKey, std::weak_ptr<const lora::Adapter>> told_;
};

// What a process was told.
class HeldAdapters {
 public:
  // kIo: it is no adapter, or none that parts were announced of.
  Result<void> begin(AdapterText text);
  Result<void> append(const AdapterBytes& part);
  void forget(const lora::AdapterKey& key) { held_.erase(key); }
  // kInternal: the process was not told of it.
  Result<std::shared_ptr<const lora::NamedAdapter>> find(const lora::AdapterKey& key) const;

 private:
  Result<void> finish();

  std::optional<AdapterText> coming_;
  std::vector<std::byte> memory_;  // of the one that comes
  std::map<lora::AdapterKey, std::shared_ptr<const lora::NamedAdapter>> held_;
};

}  // namespace rudder::remote
