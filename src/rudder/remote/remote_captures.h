// RemoteCaptures: the capture dispatcher of engine processes, as the front has it: it asks one
// whether a field is a capture, and remembers the field by the number of its spec. Rows, consumers
// and plugins are the engine processes'. Any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rudder/remote/engine_link.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/capture/spec_table.h"

namespace rudder::remote {

class RemoteCaptures final : public steer::capture::Dispatcher {
 public:
  using Links = std::vector<std::unique_ptr<EngineLink>>;
  explicit RemoteCaptures(const Links& links) : links_(links) {}

  Result<std::shared_ptr<const steer::capture::CaptureSpec>> spec(
      const boost::json::value* field, std::optional<steer::capture::StopWhen> stop_when) override;
  std::shared_ptr<const steer::capture::CaptureSpec> find(
      steer::capture::SpecId id) const override {
    return specs_.find(id);
  }
  // What the spec was made of; none: nobody holds it any more.
  std::optional<CaptureText> text(steer::capture::SpecId id) const;

  // Of what the engine does with a dispatcher there is nothing here.
  steer::capture::CaptureId begin(steer::capture::CaptureRequest request) override;
  void push(std::shared_ptr<const tap::CapturedRows> rows,
            std::span<const steer::capture::CaptureId> by_seq) override;
  void end(steer::capture::CaptureId id) override;
  void cancel(steer::capture::CaptureId id) override;

  steer::capture::CaptureStats stats() const override;

 private:
  Result<std::optional<SpecText>> ask(const CaptureText& text);

  const Links& links_;
  steer::capture::SpecTable specs_;
  mutable std::mutex mutex_;
  // By field, of captures without a vector: what they come to depends on the settings alone.
  std::map<std::string, std::optional<SpecText>> known_;
  struct Kept {
    std::weak_ptr<const steer::capture::CaptureSpec> spec;
    CaptureText text;
  };
  std::map<uint64_t, Kept> texts_;  // by the number of the spec
  size_t prune_at_ = 64;
};

}  // namespace rudder::remote
