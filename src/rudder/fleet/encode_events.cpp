#include "rudder/fleet/encode_events.h"

#include <span>

#include "rudder/fleet/msgpack.h"

namespace rudder::fleet {
namespace {

// vLLM's names. What lies on the device is called so, that of a CPU backend too.
std::string_view name_of(cache::Medium medium) {
  switch (medium) {
    case cache::Medium::kDevice:
      return "GPU";
    case cache::Medium::kHost:
      return "CPU";
    case cache::Medium::kDisk:
      return "STORAGE";
  }
  return "";
}

// Events that become one map.
using Run = std::span<const BlockEvent>;

bool joins(const BlockEvent& last, const BlockEvent& next) {
  if (last.kind != next.kind || last.group != next.group || last.medium != next.medium) {
    return false;
  }
  switch (next.kind) {
    case BlockEvent::Kind::kStored:
      return next.has_parent && next.parent == last.hash;
    case BlockEvent::Kind::kRemoved:
      return true;
    case BlockEvent::Kind::kCleared:
      return false;
  }
  return false;
}

std::vector<Run> join(const std::vector<BlockEvent>& events) {
  std::vector<Run> runs;
  for (size_t begin = 0, end = 1; begin < events.size(); begin = end++) {
    while (end < events.size() && joins(events[end - 1], events[end])) ++end;
    runs.push_back(Run(events).subspan(begin, end - begin));
  }
  return runs;
}

class BatchEncoder {
 public:
  BatchEncoder(const EventBatch& batch, const CacheShape& shape)
      : batch_(batch), shape_(shape), tokens_(batch.tokens) {}

  std::string encode() {
    out_.array(3);
    out_.float64(batch_.time_s);
    const std::vector<Run> runs = join(batch_.events);
    out_.array(runs.size());
    for (const Run& run : runs) {
      switch (run.front().kind) {
        case BlockEvent::Kind::kStored:
          stored(run);
          break;
        case BlockEvent::Kind::kRemoved:
          removed(run);
          break;
        case BlockEvent::Kind::kCleared:
          out_.map(1);
          type("AllBlocksCleared");
          break;
      }
    }
    out_.uint(static_cast<uint64_t>(shape_.rank));
    return out_.take();
  }

 private:
  void type(std::string_view name) {
    out_.text("type");
    out_.text(name);
  }

  void hashes(const Run& run) {
    out_.text("block_hashes");
    out_.array(run.size());
    for (const BlockEvent& event : run) out_.uint(event.hash);
  }

  void nil(std::string_view key) {
    out_.text(key);
    out_.nil();
  }

  void number(std::string_view key, int32_t value) {
    out_.text(key);
    out_.uint(static_cast<uint64_t>(value));
  }

  void medium(const Run& run) {
    out_.text("medium");
    out_.text(name_of(run.front().medium));
  }

  void stored(const Run& run) {
    const int32_t window = shape_.windows[static_cast<size_t>(run.front().group)];
    const size_t of_group = !shape_.names_groups() ? 0 : window == 0 ? 2 : 3;
    out_.map(8 + of_group);
    type("BlockStored");
    hashes(run);
    if (run.front().has_parent) {
      out_.text("parent_block_hash");
      out_.uint(run.front().parent);
    } else {
      nil("parent_block_hash");
    }
    const size_t count = run.size() * static_cast<size_t>(shape_.block_size);
    out_.text("token_ids");
    out_.array(count);
    for (const int32_t token : tokens_.first(count)) out_.uint(static_cast<uint64_t>(token));
    tokens_ = tokens_.subspan(count);
    number("block_size", shape_.block_size);
    nil("lora_id");
    medium(run);
    nil("lora_name");
    if (of_group == 0) return;
    number("group_idx", run.front().group);
    out_.text("kv_cache_spec_kind");
    out_.text(window == 0 ? "full_attention" : "sliding_window");
    if (window > 0) number("kv_cache_spec_sliding_window", window);
  }

  void removed(const Run& run) {
    out_.map(4);
    type("BlockRemoved");
    hashes(run);
    medium(run);
    number("group_idx", run.front().group);
  }

  const EventBatch& batch_;
  const CacheShape& shape_;
  std::span<const int32_t> tokens_;  // of the stored blocks still to be written
  MsgpackWriter out_;
};

}  // namespace

std::string encode_batch(const EventBatch& batch, const CacheShape& shape) {
  return BatchEncoder(batch, shape).encode();
}

}  // namespace rudder::fleet
