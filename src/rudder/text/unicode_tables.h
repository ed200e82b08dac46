// The generated differences between the reference's Unicode versions and those of PCRE2 and
// utf8proc (see tools/tokenizer_diff/make_unicode_tables.py). Read by unicode.cpp and regex.cpp.
// Sorted, disjoint ranges; constants, safe from any thread.
#pragma once

#include <cstdint>
#include <span>

namespace rudder::text {

enum class Category : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
};

struct CodePointRange {
  uint32_t first;
  uint32_t last;
  Category category;
};

extern const std::span<const CodePointRange> kLaterCategory;
extern const std::span<const CodePointRange> kUnknownToNormaliser;
extern const std::span<const CodePointRange> kUnknownPunctuation;

}  // namespace rudder::text
