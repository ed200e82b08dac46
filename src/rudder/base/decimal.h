// Decimal: a decimal number of any size and length, as JSON writes numbers, exact. A plain value;
// any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rudder {

class Decimal {
 public:
  // How far a digit may be from the point: what is beyond would be that many digits long.
  static constexpr int64_t kMaxExponent = 1'000'000;

  Decimal() = default;  // 0
  explicit Decimal(int64_t value);
  // A number as JSON writes it; nothing where it is none, or reaches beyond kMaxExponent.
  static std::optional<Decimal> read(std::string_view text);

  bool is_zero() const { return digits_.empty(); }
  bool is_negative() const { return negative_; }
  bool is_whole() const { return point_ >= static_cast<int64_t>(digits_.size()); }
  std::optional<int64_t> to_int64() const;  // of whole ones that fit

  // Of its size. Digits in front of the point: 1 for what is below 1.
  int64_t num_whole_digits() const { return point_ > 0 ? point_ : 1; }
  std::string whole_digits() const;     // without leading zeros, "0" at least
  std::string fraction_digits() const;  // behind the point, without zeros at the end
  int64_t num_fraction_digits() const;

  Decimal negated() const;
  // The next whole number below it, or itself; the same above it.
  Decimal floor() const;
  Decimal ceil() const { return negated().floor().negated(); }
  // Of a whole number: the next ones.
  Decimal plus_one() const;
  Decimal minus_one() const { return negated().plus_one().negated(); }

  // As JSON, in one spelling: with an exponent where it is long otherwise.
  std::string text() const;

  friend bool operator==(const Decimal& a, const Decimal& b) = default;
  friend std::strong_ordering operator<=>(const Decimal& a, const Decimal& b);

 private:
  Decimal(bool negative, std::string digits, int64_t point);

  // 0.digits * 10^point. No zero at either end of the digits; none of them: 0.
  bool negative_ = false;
  std::string digits_;
  int64_t point_ = 0;
};

}  // namespace rudder
