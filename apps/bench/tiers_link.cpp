#include "bench/tiers_link.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "report/statistics.h"
#include "rudder/base/checksum.h"
#include "rudder/base/clock.h"
#include "rudder/exec/device_tiers.h"
#include "rudder/exec/record_format.h"
#include "rudder/exec/record_memory.h"

namespace rudder::apps {
namespace {

constexpr int32_t kRounds = 5;
constexpr int32_t kBlocks = 128;  // of the device, which records take in turn
constexpr int64_t kPieceBytes = int64_t{256} << 20;
constexpr int64_t kRecordsBytes = int64_t{1} << 30;  // of all records, about

double rate(int64_t bytes, int64_t us) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(us, 1)) * 1e-3;
}

// The median rate of a call that moves so many bytes, behind one that is not counted.
template <typename Call>
Result<double> median_rate(int64_t bytes, const Call& call) {
  const SteadyClock clock;
  std::vector<double> rates;
  for (int32_t round = 0; round <= kRounds; ++round) {
    const int64_t start_us = clock.now_us();
    RUDDER_TRY_VOID(call());
    if (round > 0) rates.push_back(rate(bytes, clock.now_us() - start_us));
  }
  return summarize(rates, {}).median;
}

Result<void> measure_pieces(ops::Ops& ops, int64_t record_bytes, LinkRates& rates) {
  RUDDER_TRY(const std::unique_ptr<ops::CopyLane> lane, exec::lane_of(ops));
  RUDDER_TRY(const ops::View memory, ops.allocate(tensor::DType::kU8, {kPieceBytes}));
  RUDDER_TRY(const std::span<std::byte> host, lane->allocate(kPieceBytes));
  std::ranges::fill(host, std::byte{1});
  const std::span<std::byte> device(static_cast<std::byte*>(memory.data), memory.bytes());
  const std::vector<ops::LanePiece> whole = {{.device = device, .host = host}};
  const auto in = [&](const std::vector<ops::LanePiece>& pieces) {
    return lane->copy_in(pieces, [] {});
  };
  RUDDER_TRY(rates.piece_out, median_rate(kPieceBytes, [&] { return lane->copy_out(whole); }));
  RUDDER_TRY(rates.piece_in, median_rate(kPieceBytes, [&] { return in(whole); }));
  std::vector<ops::LanePiece> pieces;
  const auto piece = static_cast<size_t>(std::min(record_bytes, kPieceBytes));
  for (size_t at = 0; at + piece <= host.size(); at += piece) {
    pieces.push_back({.device = device.subspan(at, piece), .host = host.subspan(at, piece)});
  }
  const auto in_pieces = static_cast<int64_t>(pieces.size() * piece);
  RUDDER_TRY(rates.pieces_in, median_rate(in_pieces, [&] { return in(pieces); }));
  uint64_t sum = 0;
  RUDDER_TRY(rates.checksum, median_rate(kPieceBytes, [&]() -> Result<void> {
               sum += checksum(host);
               return {};
             }));
  return sum == 1 ? fail(ErrorCode::kInternal, "no checksum") : Result<void>();  // it is used
}

// Copies of records, one of each place, until all are done.
class Records {
 public:
  static Result<Records> make(ops::Ops& ops, const exec::MemoryBudget& budget,
                              const std::string& folder) {
    Records records;
    const step::RecordParts parts = step::group_part(budget.kv.groups.size()) - 1;
    step::TierCaps caps = {.block_bytes = budget.kv.block_bytes};
    records.record_bytes_ = exec::record_bytes(caps, parts);
    caps.plain_records =
        static_cast<int32_t>(std::max<int64_t>(kRecordsBytes / records.record_bytes_, 2));
    caps.disk_bytes = folder.empty() ? 0 : 2 * kRecordsBytes + 2 * records.record_bytes_;
    const step::Capacity capacity = {.num_blocks = kBlocks,
                                     .block_size = budget.block_size,
                                     .kv_groups = budget.kv.groups,
                                     .tiers = caps};
    RUDDER_TRY(const ops::View pool,
               ops.allocate(tensor::DType::kU8, {kBlocks, budget.kv.block_bytes}));
    RUDDER_TRY(records.memory_, exec::start_tiers(ops, capacity, budget.kv, pool, {}, folder));
    for (int32_t i = 0; i < caps.plain_records; ++i) {
      step::RecordCopy copy = {.id = i + 1,
                               .key = {.low = static_cast<uint64_t>(i), .high = 1},
                               .record = i,
                               .parts = parts};
      for (int32_t g = 0; g < budget.kv.groups.size(); ++g) {
        copy.blocks.push_back((i + g) % kBlocks);
      }
      records.copies_.push_back(std::move(copy));
    }
    return records;
  }

  int64_t record_bytes() const { return record_bytes_; }
  int64_t bytes() const { return record_bytes_ * std::ssize(copies_); }
  Result<double> rate_of(step::RecordMove move) {
    return median_rate(bytes(), [&] { return run(move); });
  }

 private:
  Result<void> run(step::RecordMove move) {
    for (step::RecordCopy& copy : copies_) copy.move = move;
    memory_->begin(copies_);
    for (size_t left = copies_.size(); left > 0;) {
      for (const step::RecordDone& done : memory_->take_done(true)) {
        if (!done.ok) return fail(ErrorCode::kIo, "a record was not copied", "kv-disk-dir");
        --left;
      }
    }
    return {};
  }

  int64_t record_bytes_ = 0;
  std::unique_ptr<exec::RecordMemory> memory_;
  std::vector<step::RecordCopy> copies_;
};

}  // namespace

Result<LinkRates> measure_link(ops::Ops& ops, const exec::MemoryBudget& budget,
                               const std::string& folder) {
  LinkRates rates;
  const step::RecordParts parts = step::group_part(budget.kv.groups.size()) - 1;
  RUDDER_TRY_VOID(measure_pieces(
      ops, exec::record_bytes({.block_bytes = budget.kv.block_bytes}, parts), rates));
  const SteadyClock clock;
  const int64_t start_us = clock.now_us();
  const std::string files = folder.empty() ? folder : folder + "/link";
  RUDDER_TRY(Records records, Records::make(ops, budget, files));
  rates.start_seconds = static_cast<double>(clock.now_us() - start_us) * 1e-6;
  rates.start_gib = static_cast<double>(records.bytes()) / (1 << 30);
  rates.record_bytes = records.record_bytes();
  RUDDER_TRY(rates.records_out, records.rate_of(step::RecordMove::kStore));
  RUDDER_TRY(rates.records_in, records.rate_of(step::RecordMove::kLoad));
  if (files.empty()) return rates;
  RUDDER_TRY(rates.files_out, records.rate_of(step::RecordMove::kWrite));
  RUDDER_TRY(rates.files_in, records.rate_of(step::RecordMove::kFetch));
  std::error_code error;
  std::filesystem::remove_all(files, error);
  return rates;
}

}  // namespace rudder::apps
