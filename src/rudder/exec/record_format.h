// The bytes of a record: a header, then its parts, the blocks of its groups in their order and the
// checkpoint behind them. The same in host memory and in a file. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rudder/step/records.h"

namespace rudder::exec {

struct RecordHeader {
  uint64_t magic = 0;
  step::RecordKey key;
  uint32_t parts = 0;
  uint32_t version = 0;
  int64_t block_bytes = 0;
  int64_t checkpoint_bytes = 0;
  uint64_t payload_sum = 0;  // checksum of what is behind the header
  uint64_t header_sum = 0;   // of the header before this
};
static_assert(sizeof(RecordHeader) == 64);

// Of the record with its header.
inline int64_t record_bytes(const step::TierCaps& tiers, step::RecordParts parts) {
  return static_cast<int64_t>(sizeof(RecordHeader)) + tiers.bytes_of(parts);
}

// Writes the header of the payload that is there; `record` has both.
void seal_record(const step::TierCaps& tiers, const step::RecordKey& key, step::RecordParts parts,
                 std::span<std::byte> record);
// The header is what was sealed: this key's, of these parts and this layout.
bool has_header(const step::TierCaps& tiers, const step::RecordKey& key, step::RecordParts parts,
                std::span<const std::byte> record);
// The payload is what the header says.
bool has_payload(std::span<const std::byte> record);

}  // namespace rudder::exec
