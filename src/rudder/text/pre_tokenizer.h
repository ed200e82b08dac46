// PreTokenizer: the `pre_tokenizer` of a tokenizer.json, which cuts a normalised text into the
// pieces that the model encodes one by one. Owned by the Tokenizer, called by encode. Immutable:
// safe from any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::text {

struct Piece {
  uint32_t begin = 0;  // byte range in Pieces::text
  uint32_t end = 0;
  bool at_origin = false;  // begins where the original text began
};

// The working state of one encode call: stages read `list` and write `next`, then swap.
struct Pieces {
  std::string text;
  std::vector<Piece> list;
  std::string next_text;
  std::vector<Piece> next;

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

struct PreTokenizerStage {
  virtual ~PreTokenizerStage() = default;
  virtual Result<void> apply(Pieces& pieces) const = 0;
};

class PreTokenizer {
 public:
  // `node` may be null: one piece. kUnsupported names the stage.
  static Result<PreTokenizer> parse(const boost::json::value& node);

  Result<void> apply(Pieces& pieces) const;
  // The chain ends in ByteLevel's mapping of bytes to printable characters. apply() leaves that
  // out: the model reads the bytes themselves.
  bool ends_in_bytes() const { return ends_in_bytes_; }

 private:
  std::vector<std::unique_ptr<const PreTokenizerStage>> stages_;
  bool ends_in_bytes_ = false;
};

}  // namespace rudder::text
