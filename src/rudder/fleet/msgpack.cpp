#include "rudder/fleet/msgpack.h"

#include <bit>

#include "rudder/base/check.h"

namespace rudder::fleet {
namespace {

// First bytes of the forms.
constexpr uint8_t kFixMap = 0x80, kFixArray = 0x90, kFixText = 0xA0;
constexpr uint8_t kNil = 0xC0, kFloat64 = 0xCB;
constexpr uint8_t kUint8 = 0xCC, kUint16 = 0xCD, kUint32 = 0xCE, kUint64 = 0xCF;
constexpr uint8_t kText8 = 0xD9, kText16 = 0xDA;
constexpr uint8_t kArray16 = 0xDC, kMap16 = 0xDE;  // that of 32 bits is the next one

}  // namespace

void MsgpackWriter::big_endian(uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    byte(static_cast<uint8_t>(value >> shift));
  }
}

void MsgpackWriter::head(size_t size, uint8_t fixed, size_t most_fixed, uint8_t sized16) {
  RUDDER_CHECK(size <= UINT32_MAX, "{} elements", size);
  if (size <= most_fixed) return byte(static_cast<uint8_t>(fixed | size));
  const bool is_long = size > UINT16_MAX;
  byte(is_long ? sized16 + 1 : sized16);
  big_endian(size, is_long ? 4 : 2);
}

void MsgpackWriter::array(size_t size) {
  head(size, kFixArray, 15, kArray16);
}

void MsgpackWriter::map(size_t size) {
  head(size, kFixMap, 15, kMap16);
}

void MsgpackWriter::text(std::string_view utf8) {
  constexpr size_t kMostFixed = 31;
  if (utf8.size() > kMostFixed && utf8.size() <= UINT8_MAX) {
    byte(kText8);
    byte(static_cast<uint8_t>(utf8.size()));
  } else {
    head(utf8.size(), kFixText, kMostFixed, kText16);
  }
  out_.append(utf8);
}

void MsgpackWriter::uint(uint64_t value) {
  constexpr uint64_t kMostFixed = 0x7F;
  if (value <= kMostFixed) return byte(static_cast<uint8_t>(value));
  const int bytes = value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : value <= UINT32_MAX ? 4 : 8;
  byte(bytes == 1 ? kUint8 : bytes == 2 ? kUint16 : bytes == 4 ? kUint32 : kUint64);
  big_endian(value, bytes);
}

void MsgpackWriter::float64(double value) {
  byte(kFloat64);
  big_endian(std::bit_cast<uint64_t>(value), 8);
}

void MsgpackWriter::nil() {
  byte(kNil);
}

}  // namespace rudder::fleet
