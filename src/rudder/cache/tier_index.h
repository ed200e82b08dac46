// TierIndex: which prefix blocks lie as records behind the device (step/records.h): in placements
// of host memory, and in files. It says who is evicted, and never sees a byte. A record is found
// once its bytes are there, and only then. sched::Tiers owns it; engine thread. Normative text:
// docs/contracts/cache.md, "Tiers".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::cache {

using TierKey = std::pair<uint64_t, uint64_t>;  // of the block, low word first
struct TierKeyHash {
  size_t operator()(const TierKey& key) const { return key.first; }
};

class TierIndex {
 public:
  struct Options {
    int32_t plain_placements = 0;   // of host memory, for records without a checkpoint
    int32_t stated_placements = 0;  // for any: the ids behind those
    int64_t disk_bytes = 0;         // of files
  };
  // Bits of what a record has, as its maker counts them; those of `checkpoint` need a stated
  // placement.
  using Parts = uint32_t;

  struct Found {
    Parts host = 0;  // 0: no placement has it
    Parts disk = 0;  // 0: no file has it
    Parts best() const { return host != 0 ? host : disk; }
  };
  // A record that was forgotten in favour of another.
  struct Lost {
    TierKey key;
    Parts parts = 0;
    bool is_file = false;
  };
  struct Counts {
    int32_t host = 0;  // records that are found
    int32_t disk = 0;
    int64_t disk_bytes = 0;
    uint64_t host_evictions = 0;
    uint64_t disk_evictions = 0;
  };

  TierIndex(const Options& options, Parts checkpoint);

  Found find(const TierKey& key) const;
  // It was of use just now.
  void touch(const TierKey& key);

  // A placement for the record that nobody finds until end_fill(); evicts the one that was of use
  // longest ago. Nothing: every placement is filled or read just now, or this record's is.
  std::optional<int32_t> begin_fill(const TierKey& key, Parts parts);
  // Its bytes are there; or not, then there is no such record in host memory.
  void end_fill(const TierKey& key, bool ok);
  // The placement of the record is read; it stays until as many unpin(). `ok` false: its bytes are
  // bad, and it is found no more.
  int32_t pin(const TierKey& key);
  void unpin(const TierKey& key, bool ok);

  // Room for a file of so many bytes, which nobody finds until end_write(). False: there is one, or
  // one is being written, or no room.
  bool begin_write(const TierKey& key, int64_t bytes);
  void end_write(const TierKey& key, Parts parts, bool ok);
  // Files that lie there at the start, the one that was of use longest ago first.
  void add_file(const TierKey& key, Parts parts, int64_t bytes);
  // The file is bad, or gone.
  void drop_file(const TierKey& key);

  // No longer found, in any tier; what is filled, read or written is forgotten when that ends.
  void forget(const TierKey& key);
  void forget_all();

  // Since the last call; files among them are to be erased.
  std::vector<Lost> take_lost() { return std::exchange(lost_, {}); }
  const Counts& counts() const { return counts_; }
  // Places, lists and counts agree; `in_use`: how many fills, pins and writes are on their way.
  Result<void> check(int32_t in_use) const;

 private:
  using Uses = std::list<TierKey>;  // the one of longest ago first
  struct Entry {
    int32_t placement = -1;
    Parts host = 0;           // of what is in its placement
    bool is_filling = false;  // not found yet
    bool is_doomed = false;   // what is on its way is forgotten when that ends
    int32_t pins = 0;
    Uses::iterator host_use = {};
    Parts disk = 0;  // 0: no file, or one that is being written
    int64_t disk_bytes = 0;
    bool is_writing = false;
    Uses::iterator disk_use = {};
  };
  using Entries = std::unordered_map<TierKey, Entry, TierKeyHash>;

  size_t class_of(int32_t placement) const { return placement < options_.plain_placements ? 0 : 1; }
  bool evict(size_t size_class);
  void free_placement(Entry& entry);
  void free_file(Entry& entry);
  void remove_if_empty(Entries::iterator found);
  void forget_entry(Entries::iterator found);

  Options options_;
  Parts checkpoint_;
  Entries entries_;
  std::array<std::vector<int32_t>, 2> free_;  // placements, plain and stated
  std::array<Uses, 2> host_uses_;             // of records in them
  Uses disk_uses_;
  std::vector<Lost> lost_;
  Counts counts_;
};

}  // namespace rudder::cache
