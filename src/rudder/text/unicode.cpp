#include "rudder/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "rudder/base/utf8.h"

namespace rudder::text {
namespace {

constexpr size_t kCodePoints = 0x110000;

// Lower-case pairs that are later than utf8proc's Unicode version.
struct LowerRange {
  char32_t first, last;
  int32_t delta;
};
constexpr LowerRange kLaterLower[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 27},
};

std::vector<uint8_t> make_flags() {
  std::vector<uint8_t> flags(kCodePoints, 0);
  for (char32_t c = 0; c < kCodePoints; ++c) {
    switch (category(c)) {
      case Category::kLu:
      case Category::kLl:
      case Category::kLt:
      case Category::kLm:
      case Category::kLo:
        flags[c] = kLetter;
        break;
      case Category::kMn:
      case Category::kMc:
      case Category::kMe:
        flags[c] = kMark;
        break;
      case Category::kNd:
      case Category::kNl:
      case Category::kNo:
        flags[c] = kNumber;
        break;
      case Category::kPc:
      case Category::kPd:
      case Category::kPs:
      case Category::kPe:
      case Category::kPi:
      case Category::kPf:
      case Category::kPo:
        flags[c] = kPunctuation;
        break;
      case Category::kZs:
      case Category::kZl:
      case Category::kZp:
        flags[c] = kSpace;
        break;
      default:
        break;
    }
  }
  for (char32_t c = '\t'; c <= '\r'; ++c) flags[c] = kSpace;
  flags[0x85] = kSpace;
  for (const CodePointRange& range : kUnknownToNormaliser) {
    for (uint32_t c = range.first; c <= range.last; ++c) flags[c] &= ~kMark;
  }
  for (const char32_t c : {0x1CF2, 0x1CF3}) flags[c] |= kMark;
  for (const CodePointRange& range : kUnknownPunctuation) {
    for (uint32_t c = range.first; c <= range.last; ++c) flags[c] &= ~kPunctuation;
  }
  for (const char32_t c : {0x24, 0x2B, 0x3C, 0x3D, 0x3E, 0x5E, 0x60, 0x7C, 0x7E, 0x166D, 0x111C9}) {
    flags[c] |= kPunctuation;
  }
  return flags;
}

struct ByteAlphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 512> bytes{};
  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                             (byte >= 0xAE && byte <= 0xFF);
      chars[byte] = printable ? static_cast<char32_t>(byte) : next++;
      bytes[chars[byte]] = static_cast<int16_t>(byte);
    }
  }
};
const ByteAlphabet kByteAlphabet;

}  // namespace

const uint8_t* char_flags() {
  static const std::vector<uint8_t> flags = make_flags();
  return flags.data();
}

bool in_ranges(std::span<const CodePointRange> ranges, char32_t c) {
  const auto it = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return it != ranges.begin() && c <= std::prev(it)->last;
}

Category category(char32_t c) {
  const auto found = std::upper_bound(
      kLaterCategory.begin(), kLaterCategory.end(), c,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  if (found != kLaterCategory.begin() && c <= std::prev(found)->last) {
    return std::prev(found)->category;
  }
  return static_cast<Category>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
}

bool is_word_char(char32_t c) {
  switch (category(c)) {
    case Category::kLu:
    case Category::kLl:
    case Category::kLt:
    case Category::kLm:
    case Category::kLo:
    case Category::kMn:
    case Category::kMc:
    case Category::kMe:
    case Category::kNd:
    case Category::kNl:
    case Category::kPc:
      return true;
    default:  // the alphabetic symbols, and the joiners
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C ||
             c == 0x200D;
  }
}

bool is_numeric(char32_t c) {
  return (char_flags()[c] & kNumber) != 0 || (c >= 0x11DE0 && c <= 0x11DE9) ||
         (c >= 0x16FF4 && c <= 0x16FF6);
}

char32_t byte_char(uint8_t byte) {
  return kByteAlphabet.chars[byte];
}

std::optional<uint8_t> char_byte(char32_t c) {
  if (c >= kByteAlphabet.bytes.size() || kByteAlphabet.bytes[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(kByteAlphabet.bytes[c]);
}

void append_lowercase(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    return;
  }
  if (c == 0x130) {  // the only character whose lower case is two
    out += "i\xCC\x87";
    return;
  }
  for (const LowerRange& range : kLaterLower) {
    if (c >= range.first && c <= range.last) {
      append_utf8(out, static_cast<char32_t>(static_cast<int32_t>(c) + range.delta));
      return;
    }
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace rudder::text
