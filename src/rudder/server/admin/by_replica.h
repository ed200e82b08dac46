// ByReplica: families of /metrics with one sample a replica, in the order of their numbers, each
// with vLLM's label `engine`. `value`: a member of EngineStats, or what is made of it. One object a
// scrape.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "rudder/engine/engine.h"
#include "rudder/server/admin/exposition.h"

namespace rudder::server {

using Replicas = std::span<const engine::ReplicaState>;

inline std::string engine_label(size_t replica) {
  return label("engine", std::to_string(replica));
}

// Of its KV blocks, those in use: 1 is all of them.
inline double kv_usage(const engine::EngineStats& stats) {
  return stats.num_blocks > 0 ? static_cast<double>(stats.blocks_in_use) / stats.num_blocks : 0;
}

class ByReplica {
 public:
  ByReplica(Exposition& out, Replicas replicas) : out_(out), replicas_(replicas) {}

  template <typename Value>
  void family(std::string_view type, std::string_view name, std::string_view help,
              const Value& value) const {
    out_.begin(name, type, help);
    samples("", value);
  }
  template <typename Value>
  void gauge(std::string_view name, std::string_view help, const Value& value) const {
    family("gauge", name, help, value);
  }
  template <typename Value>
  void counter(std::string_view name, std::string_view help, const Value& value) const {
    family("counter", name, help, value);
  }
  // Of the family that was begun last.
  template <typename Value>
  void samples(const std::string& labels, const Value& value) const {
    for (size_t i = 0; i < replicas_.size(); ++i) {
      out_.sample(engine_label(i) + (labels.empty() ? "" : ",") + labels,
                  static_cast<double>(std::invoke(value, replicas_[i].stats)));
    }
  }
  void histogram(std::string_view name, std::string_view help,
                 engine::Histogram engine::EngineStats::*value) const {
    out_.begin(name, "histogram", help);
    for (size_t i = 0; i < replicas_.size(); ++i) {
      out_.buckets(engine_label(i), replicas_[i].stats.*value);
    }
  }

 private:
  Exposition& out_;
  const Replicas replicas_;
};

}  // namespace rudder::server
