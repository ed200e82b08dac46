// UniqueTexts: keeps the strings or numbers of a list different from each other (`uniqueItems`),
// which a grammar cannot say: it knows the output's text, and takes from a mask the tokens behind
// which one could only become what the list has already. It is an item, or the value of a field of
// each item, which then differ as a whole; or a key, so that an object has as many fields as were
// counted. Such strings and numbers have one spelling; a beginning
// leads nowhere when all texts that it may become are there, so it is counted how many these are
// (text_counts.h). A list has no more items than there are texts, which its grammar sees to.
// FormMatcher has one where its grammar has such lists; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/earley_parser.h"
#include "rudder/constraint/token_trie.h"

namespace rudder::constraint {

// What numbers consist of in their one spelling: no exponents.
constexpr std::string_view kNumberBytes = "-.0123456789";

class UniqueTexts {
 public:
  // The output has gone on by `bytes`, for which the parser has `num_rows` rows now.
  void note(std::string_view bytes, int32_t num_rows);
  // Takes back what was noted of rows beyond these.
  void return_to(int32_t num_rows);
  // Clears bits of the mask: of the tokens that go on within a text, or end it where it is open.
  void forbid(EarleyParser& parser, const ParserGrammar& grammar, const TokenTrie& trie,
              std::span<uint32_t> mask);
  // Of tokens that are each tried by itself: they may have a whole text, or the begin of one, in
  // them. `token_bytes`: by id. The parser is as it was, afterwards.
  void forbid(EarleyParser& parser, const ParserGrammar& grammar, const std::vector<int32_t>& ids,
              const std::vector<std::string>& token_bytes, std::span<uint32_t> mask);

 private:
  using Open = EarleyParser::Open;

  void forbid(const ParserGrammar::Terminal& terminal, const Open& open, std::string_view value,
              const std::vector<std::string_view>& values, const TokenTrie& trie,
              std::span<uint32_t> mask) const;
  // Texts, with their quotes, of the items of the list in which `open` is, that begin so.
  std::vector<std::string_view> earlier(const EarleyParser& parser, const ParserGrammar& grammar,
                                        const Open& open, std::string_view begun) const;
  // Rows that the innermost lists begin in whose items have the symbol that began in the row; of
  // keys, objects.
  std::vector<int32_t> lists_around(const EarleyParser& parser, const ParserGrammar& grammar,
                                    int32_t row, int32_t symbol) const;
  // Whether an open text ends by the byte, as one of the earlier ones.
  bool ends_as_one(const EarleyParser& parser, const ParserGrammar& grammar, uint8_t byte) const;
  // Whether behind the bytes a text could only become one of the earlier ones, or is one.
  bool repeats(EarleyParser& parser, const ParserGrammar& grammar, std::string_view bytes);
  bool is_used_up(const EarleyParser& parser, const ParserGrammar& grammar) const;
  size_t offset(int32_t row) const { return offsets_[static_cast<size_t>(row)]; }

  std::string text_;
  std::vector<uint32_t> offsets_ = {0};  // by row of the parser: bytes before it
};

}  // namespace rudder::constraint
