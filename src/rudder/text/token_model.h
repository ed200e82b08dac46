// TokenModel: the model of a tokenizer.json, of one of the kinds that there are. Owned by the
// Tokenizer. Immutable: safe from any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/text/bpe.h"
#include "rudder/text/unigram.h"

namespace rudder::text {

class TokenModel {
 public:
  // `pieces_are_bytes` as for Bpe.
  static Result<TokenModel> parse(const boost::json::value& model, bool pieces_are_bytes);

  void encode(std::string_view piece, std::vector<int32_t>& out, size_t max_ids) const {
    std::visit([&](const auto& kind) { kind.encode(piece, out, max_ids); }, kind_);
  }
  const TokenTable& tokens() const {
    return std::visit([](const auto& kind) -> const TokenTable& { return kind.tokens(); }, kind_);
  }
  int32_t find(std::string_view token) const {
    return std::visit([&](const auto& kind) { return kind.find(token); }, kind_);
  }
  int32_t count() const {
    return std::visit([](const auto& kind) { return kind.count(); }, kind_);
  }

 private:
  using Kind = std::variant<Bpe, Unigram>;
  explicit TokenModel(Kind kind) : kind_(std::move(kind)) {}

  Kind kind_;
};

}  // namespace rudder::text
