#include "rudder/server/request/token_list_fields.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>
#include <utility>

#include "rudder/constraint/bad_words.h"
#include "rudder/server/request/field_ranges.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

using Constraints = std::vector<constraint::ConstraintSpec>;

void read_allowed_tokens(FieldReader& reader, int32_t vocab_size, Constraints* constraints) {
  constexpr std::string_view kName = "allowed_token_ids";
  if (reader.raw(kName) == nullptr) return;
  std::vector<int32_t> tokens;
  reader.token_ids(kName, size_limit(kName), &tokens);
  if (!reader.ok()) return;
  if (tokens.empty()) return reader.error(ErrorCode::kInvalidArgument, "is empty", kName);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < vocab_size) continue;
    return reader.error(ErrorCode::kInvalidArgument,
                        fmt::format("must be below {}, the size of the vocabulary", vocab_size),
                        fmt::format("{}[{}]", kName, i));
  }
  constraints->emplace_back(constraint::AllowedTokens{std::move(tokens)});
}

void read_bad_words(FieldReader& reader, const text::Tokenizer& tokenizer,
                    Constraints* constraints) {
  constexpr std::string_view kName = "bad_words";
  const json::array* words = reader.array(kName);
  if (words == nullptr) return;
  if (words->size() > size_limit(kName)) {
    return reader.error(ErrorCode::kInvalidArgument,
                        fmt::format("has more than {} items", size_limit(kName)), kName);
  }
  std::vector<std::vector<int32_t>> sequences;
  for (size_t i = 0; i < words->size(); ++i) {
    const std::string name = fmt::format("{}[{}]", kName, i);
    const json::string* word = (*words)[i].if_string();
    if (word == nullptr || word->empty()) {
      return reader.error(ErrorCode::kInvalidArgument, "must be a string that is not empty", name);
    }
    if (word->size() > size_limit("bad_words[]")) {
      return reader.error(ErrorCode::kInvalidArgument,
                          fmt::format("has more than {} bytes", size_limit("bad_words[]")), name);
    }
    auto spellings = constraint::spellings_of(*word, tokenizer);
    if (!spellings) return reader.error(spellings.error().code, spellings.error().message, name);
    for (std::vector<int32_t>& spelling : *spellings) sequences.push_back(std::move(spelling));
  }
  if (!sequences.empty()) {
    constraints->emplace_back(constraint::ForbiddenWords{std::move(sequences)});
  }
}

}  // namespace

void read_token_lists(FieldReader& reader, const text::Tokenizer& tokenizer,
                      const engine::RequestLimits& limits, Constraints* constraints) {
  read_allowed_tokens(reader, limits.vocab_size, constraints);
  if (reader.ok()) read_bad_words(reader, tokenizer, constraints);
}

}  // namespace rudder::server
