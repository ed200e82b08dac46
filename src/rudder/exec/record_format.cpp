#include "rudder/exec/record_format.h"

#include <cstring>

#include "rudder/base/checksum.h"

namespace rudder::exec {
namespace {

constexpr uint64_t kMagic = 0x64726f6365727672ULL;  // "rvrecord"
constexpr uint32_t kVersion = 2;

uint64_t header_sum(const RecordHeader& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(RecordHeader, header_sum)));
}

RecordHeader header_of(std::span<const std::byte> record) {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  return header;
}

}  // namespace

void seal_record(const step::TierCaps& tiers, const step::RecordKey& key, step::RecordParts parts,
                 std::span<std::byte> record) {
  RecordHeader header = {.magic = kMagic,
                         .key = key,
                         .parts = parts,
                         .version = kVersion,
                         .block_bytes = tiers.block_bytes,
                         .checkpoint_bytes = tiers.checkpoint_bytes,
                         .payload_sum = checksum(record.subspan(sizeof(RecordHeader)))};
  header.header_sum = header_sum(header);
  std::memcpy(record.data(), &header, sizeof(header));
}

bool has_header(const step::TierCaps& tiers, const step::RecordKey& key, step::RecordParts parts,
                std::span<const std::byte> record) {
  if (static_cast<int64_t>(record.size()) != record_bytes(tiers, parts)) return false;
  const RecordHeader header = header_of(record);
  return header.magic == kMagic && header.version == kVersion && header.key == key &&
         header.parts == parts && header.block_bytes == tiers.block_bytes &&
         header.checkpoint_bytes == tiers.checkpoint_bytes &&
         header.header_sum == header_sum(header);
}

bool has_payload(std::span<const std::byte> record) {
  return header_of(record).payload_sum == checksum(record.subspan(sizeof(RecordHeader)));
}

}  // namespace rudder::exec
