// Records: what lies of cached prefixes behind the device's memory, in the host's (host tier) and
// in files (disk tier). A record has all objects of one node of the prefix index: the blocks of its
// KV groups and its checkpoint, as far as the node had them, in one contiguous piece with a
// checksum. Copies of records are part of a plan, and run beside its steps and those that follow.
// Plain data. Normative text: docs/contracts/cache.md, "Tiers".
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/step/cache_objects.h"
#include "rudder/step/ids.h"

namespace rudder::step {

// That of the prefix block (cache::BlockKey), low word first.
struct RecordKey {
  uint64_t low = 0;
  uint64_t high = 0;

  bool operator==(const RecordKey&) const = default;
};
struct RecordKeyHash {
  size_t operator()(const RecordKey& key) const { return key.low; }
};

// A place for one record in host memory. Those below `plain_records` have no room for a checkpoint.
using RecordId = int32_t;
inline constexpr RecordId kNoRecord = -1;

// Which objects a record has: bit g: the block of KV group g; kStatePart: the checkpoint.
using RecordParts = uint32_t;
inline constexpr RecordParts kStatePart = RecordParts{1} << 31U;
constexpr RecordParts group_part(int32_t group) {
  return RecordParts{1} << static_cast<uint32_t>(group);
}

// By default there are none.
struct TierCaps {
  int32_t plain_records = 0;     // in host memory: ids 0 .. plain_records - 1
  int32_t stated_records = 0;    // with room for a checkpoint: the ids behind those
  int64_t block_bytes = 0;       // of a block's part
  int64_t checkpoint_bytes = 0;  // of a checkpoint's
  int64_t disk_bytes = 0;        // of files; 0: there are none

  bool empty() const { return plain_records + stated_records == 0; }
  bool has_disk() const { return disk_bytes > 0; }
  int64_t bytes_of(RecordParts parts) const {
    const auto groups = static_cast<int64_t>(__builtin_popcount(parts & ~kStatePart));
    return groups * block_bytes + ((parts & kStatePart) != 0 ? checkpoint_bytes : 0);
  }
  bool operator==(const TierCaps&) const = default;
};

enum class RecordMove : uint8_t {
  kStore,  // from the device to the place `record`
  kLoad,   // from the place to the device, if its checksum is right
  kFetch,  // from the file to the place, then as kLoad
  kWrite,  // from the place to the file, if its checksum is right
  kErase,  // the file goes
};

// All of it or nothing: a load that fails has written what it was to write, or some of it, or none.
struct RecordCopy {
  int64_t id = 0;  // counted from 1, in the order of the plans
  RecordMove move = RecordMove::kStore;
  RecordKey key;
  RecordId record = kNoRecord;
  RecordParts parts = 0;  // of the record
  // The device's ends: by KV group, kNoBlock where none is copied; and of the checkpoint.
  std::vector<BlockId> blocks = {};
  StateId state = kNoState;

  bool operator==(const RecordCopy&) const = default;
};

// One that lies in a file.
struct StoredRecord {
  RecordKey key;
  RecordParts parts = 0;
};

// A copy that has come to its end.
struct RecordDone {
  int64_t id = 0;
  bool ok = false;
  bool is_bad = false;  // it is not: the record is not what it should be
  int64_t us = 0;       // that it took, without what it waited, and the others before it took

  bool operator==(const RecordDone&) const = default;
};

}  // namespace rudder::step
