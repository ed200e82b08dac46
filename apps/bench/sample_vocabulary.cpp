#include "bench/sample_vocabulary.h"

#include <fmt/format.h>

#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace rudder::apps {
namespace {

constexpr std::string_view kSigns = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
// Those that code and JSON put beside each other.
constexpr std::string_view kCodeSigns = "\"'(){}[]<>=:;,./\\-_*";
constexpr const char* kSyllables[] = {
    "a",  "an", "ar", "be", "ca",  "co",  "con",  "de",   "di", "do",   "e",  "en", "er",
    "es", "fi", "fo", "ga", "ge",  "ha",  "he",   "i",    "in", "ing",  "is", "it", "ka",
    "la", "le", "li", "lo", "ma",  "me",  "mi",   "mo",   "na", "ne",   "ni", "no", "o",
    "on", "or", "pa", "pe", "pre", "pro", "ra",   "re",   "ri", "ro",   "sa", "se", "si",
    "so", "st", "ta", "te", "ter", "ti",  "tion", "to",   "tr", "u",    "un", "ur", "va",
    "ve", "vi", "wa", "we", "y",   "za",  "ble",  "ment", "ly", "ness", "th", "sh", "ch"};
constexpr const char* kCyrillic[] = {"а", "в",  "го", "де", "ен", "и", "ка", "ли", "но",
                                     "о", "по", "ра", "ст", "то", "у", "ть", "ни", "про"};
constexpr const char* kAccented[] = {"é", "à", "ü", "ö", "ção", "ñ", "ê", "ą", "ł", "ş"};

class Builder {
 public:
  explicit Builder(int32_t size) : size_(static_cast<size_t>(size)) {}

  void add(std::string bytes) {
    if (tokens_.size() + 1 >= size_ || !known_.insert(bytes).second) return;
    tokens_.push_back(std::move(bytes));
  }
  bool full() const { return tokens_.size() + 1 >= size_; }

  void add_bytes_and_numbers() {
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
    for (int number = 0; number < 1000; ++number) {
      add(fmt::format("{}", number));
      add(fmt::format("{:03}", number));
      if (number < 100) add(fmt::format("{:02}", number));
    }
  }
  void add_space() {
    for (size_t count = 2; count <= 128; count += count < 32 ? 1 : 8) {
      add(std::string(count, ' '));
      add("\n" + std::string(count, ' '));
      if (count <= 16) add(std::string(count, '\t'));
      if (count <= 8) add(std::string(count, '\n'));
      for (const char sign : {'-', '=', '*', '_', '#', '.'}) {
        if (count <= 64) add(std::string(count, sign));
      }
    }
  }
  void add_signs() {
    for (const char a : kSigns) {
      add(fmt::format(" {}", a));
      add(fmt::format("{}\n", a));
      for (const char b : kSigns) {
        add(fmt::format("{}{}", a, b));
        add(fmt::format(" {}{}", a, b));
      }
    }
    for (const char a : kCodeSigns) {
      for (const char b : kCodeSigns) {
        add(fmt::format("{}{}\n", a, b));
        for (const char c : kCodeSigns) {
          if ((a + b + c) % 3 == 0) add(fmt::format("{}{}{}", a, b, c));
        }
      }
    }
  }
  // Beginnings and ends of characters, as merges of bytes leave them.
  void add_pieces() {
    for (int lead = 0xE2; lead <= 0xEF; ++lead) {
      for (int next = 0x80; next < 0xC0; next += 2) {
        add({static_cast<char>(lead), static_cast<char>(next)});
      }
    }
    for (int next = 0x90; next < 0xA4; ++next) {
      add({'\xF0', '\x9F', static_cast<char>(next)});
      add({static_cast<char>(next), '\x80'});
    }
  }

  std::string word(size_t most) {
    std::string out;
    const size_t count = 1 + random_() % most;
    for (size_t i = 0; i < count; ++i) out += kSyllables[random_() % std::size(kSyllables)];
    return out;
  }
  template <size_t kCount>
  std::string letters(const char* const (&from)[kCount], size_t most) {
    std::string out;
    const size_t count = 1 + random_() % most;
    for (size_t i = 0; i < count; ++i) out += from[random_() % kCount];
    return out;
  }
  std::string chinese() {
    std::string out;
    const size_t count = 1 + random_() % 3;
    for (size_t i = 0; i < count; ++i) {
      const auto c = static_cast<uint32_t>(0x4E00 + random_() % 0x2000);
      out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
              static_cast<char>(0x80 | (c & 0x3F))};
    }
    return out;
  }
  static std::string capital(std::string text, size_t count) {
    for (size_t i = 0; i < count && i < text.size(); ++i) {
      if (text[i] >= 'a' && text[i] <= 'z') text[i] = static_cast<char>(text[i] - 'a' + 'A');
    }
    return text;
  }

  void add_words() {
    while (!full()) {
      switch (random_() % 16) {
        case 0:
          add(" " + capital(word(4), 1));
          break;
        case 1:
          add(capital(word(4), 1));
          break;
        case 2:
          add(capital(word(2), 64));
          break;
        case 3:
          add(kSigns[random_() % kSigns.size()] + word(2));
          break;
        case 4:
          add(letters(kCyrillic, 4));
          break;
        case 5:
          add(" " + letters(kCyrillic, 4));
          break;
        case 6:
          add(word(2) + letters(kAccented, 1) + (random_() % 2 == 0 ? word(1) : ""));
          break;
        case 7:
          add(chinese());
          break;
        case 8:
        case 9:
        case 10:
          add(word(4));
          break;
        default:
          add(" " + word(4));
          break;
      }
    }
  }

  std::vector<std::string> take() { return std::move(tokens_); }

 private:
  const size_t size_;
  std::mt19937_64 random_{20240117};
  std::vector<std::string> tokens_;
  std::unordered_set<std::string> known_;
};

}  // namespace

constraint::Vocabulary sample_vocabulary(int32_t size) {
  Builder builder(size);
  builder.add_bytes_and_numbers();
  builder.add_space();
  builder.add_signs();
  builder.add_pieces();
  builder.add_words();
  constraint::Vocabulary vocabulary;
  vocabulary.token_bytes = builder.take();
  vocabulary.token_bytes.emplace_back();
  vocabulary.size = static_cast<int32_t>(vocabulary.token_bytes.size());
  vocabulary.stop_ids = {vocabulary.size - 1};
  return vocabulary;
}

}  // namespace rudder::apps
