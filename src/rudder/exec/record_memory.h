// RecordMemory: the tiers behind a device's memory: places for records in host memory and a folder
// of files, and the threads that copy records between them and the device (step/records.h), beside
// the steps. Copies go by a lane of the device (ops/copy_lane.h). Several threads each have some in
// hand, and compare checksums while they are copied, which one could not as fast as a GPU's link
// carries them. It reads blocks and states that are written for good and writes such as nobody uses
// (cache.C9), so it waits for no step and no step waits for it. The engine thread calls it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/exec/record_files.h"
#include "rudder/ops/copy_lane.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class RecordMemory {
 public:
  // What of the device records are copied from and to.
  struct Device {
    std::unique_ptr<ops::CopyLane> lane;
    std::span<std::byte> scales;  // of all blocks, one behind another; empty: there are none
    std::span<std::byte> blocks;  // their keys and values
    std::span<std::byte> states;
    int64_t num_blocks = 0;
    int64_t num_states = 0;
  };
  struct Parts {
    step::TierCaps caps;
    int32_t num_groups = 1;
    int32_t num_threads = 1;
    Device device;
    std::optional<RecordFiles> files;  // where the caps have a disk
  };
  // kUnavailable, where = "kv-host-gib": there is not as much memory.
  static Result<std::unique_ptr<RecordMemory>> start(Parts parts);
  ~RecordMemory();  // copies that have not begun are dropped

  std::vector<step::StoredRecord> stored() const;
  void begin(std::span<const step::RecordCopy> copies);
  // Those that are done since the last call; `waits`: where any is on its way, at least one.
  std::vector<step::RecordDone> take_done(bool waits);

 private:
  explicit RecordMemory(Parts parts);

  // What a thread has of its own.
  struct Worker {
    std::span<std::byte> bounce;  // of a file that is read
    // What it has in hand: one copy, or several of the same move, and what became of them.
    std::vector<step::RecordCopy> copies;
    std::vector<step::RecordDone> done;
    std::vector<std::span<std::byte>> records;
    std::vector<ops::LanePiece> pieces;
  };

  Result<void> allocate();
  Result<std::span<std::byte>> host_memory(int64_t bytes);
  std::deque<step::RecordCopy>::iterator next_copy();
  void take_next(std::deque<step::RecordCopy>::iterator next, Worker& worker);
  void work(Worker& worker);
  void run(Worker& worker);
  std::span<std::byte> place(step::RecordId record, step::RecordParts parts);
  void store(Worker& worker);
  void load(Worker& worker);
  void fetch(Worker& worker);
  void write(const step::RecordCopy& copy, step::RecordDone& done);
  void list_pieces(const step::RecordCopy& copy, std::span<std::byte> record, Worker& worker) const;
  template <typename CopyPart>
  void each_part(const step::RecordCopy& copy, const CopyPart& copy_part) const;

  const SteadyClock clock_;
  Parts parts_;
  int64_t plain_bytes_ = 0;  // of a place
  int64_t stated_bytes_ = 0;
  std::span<std::byte> host_;
  std::vector<Worker> workers_;

  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable ended_;
  std::deque<step::RecordCopy> queue_;
  std::vector<step::RecordDone> done_;
  size_t num_running_ = 0;      // queued ones too
  bool changes_files_ = false;  // a thread writes or erases one
  int64_t awaited_us_ = 0;      // when the last copy ended that a sequence waited for
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last
};

}  // namespace rudder::exec
