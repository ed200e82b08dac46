// A walk over a trie of texts that tells which of them a parser takes after its last row. Where
// there are many texts, the walk remembers what may follow a row by the row's shape, for itself and
// for the walks after it, so that a byte costs a look-up instead of a new row. Where bytes lead
// back to the same row, as in free text, it takes whole subtrees of such bytes at once; and where
// most bytes lead to the rows that they lead to from a row whose mask is known, it takes these
// bytes' tokens from that mask. FormMatcher calls it on the parser's thread. The walk adds rows to
// the parser and takes them back.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/constraint/earley_parser.h"
#include "rudder/constraint/parser_shape.h"
#include "rudder/constraint/token_trie.h"
#include "rudder/constraint/utf8_state.h"

namespace rudder::constraint {

class MaskWalk {
 public:
  MaskWalk(const ParserGrammar& grammar, size_t longest)
      : borders_(grammar.borders), shape_(grammar, longest) {}

  // Sets the bits of the texts' ids in `mask`. Returns the bytes that were tried. Ends early, with
  // what it has, when the parser has taken more than `max_steps` steps for it, or has given up.
  uint64_t run(EarleyParser& parser, const TokenTrie& trie, std::span<uint32_t> mask,
               uint64_t max_steps);
  // `mask` is what run() would set, by itself, where the parser is. Kept when there is no other
  // one.
  void keep_base(EarleyParser& parser, const TokenTrie& trie, std::span<const uint32_t> mask);

 private:
  // A row by its shape, and where bytes lead from there.
  struct State {
    std::array<int32_t, 256> next;
    uint32_t visits = 0;
    // Groups of bytes (TokenTrie) that all lead back to this very state; those beyond ASCII: as
    // characters of UTF-8.
    uint64_t loops = 0;
  };

  // A state with its mask.
  struct Base {
    const TokenTrie* trie = nullptr;
    int32_t state = 0;
    std::vector<uint32_t> mask;
  };

  // Up to the node `end`.
  template <typename Over>
  uint64_t run_by_shape(EarleyParser& parser, const TokenTrie& trie, std::span<uint32_t> mask,
                        size_t* at, size_t end, const Over& over);
  // Nothing, and no change of the mask, where the base is of no use here: it is dropped then.
  template <typename Over>
  std::optional<uint64_t> run_from_base(EarleyParser& parser, const TokenTrie& trie,
                                        std::span<uint32_t> mask, const Over& over);
  // Finds where all bytes lead from the end of the path; of the base too, where one leads there.
  void step_all(EarleyParser& parser);
  void forget_states();
  int32_t state_of(EarleyParser& parser);
  // Of the parser's last row, `depth` bytes into the walk, by a byte; below zero where it does not.
  int32_t step(EarleyParser& parser, size_t depth, int32_t from, uint8_t byte);
  // Takes back rows behind the first `depth` bytes of the walk.
  void leave_to(EarleyParser& parser, size_t depth);
  // Finds `loops` of the state at the end of the path.
  void find_loops(EarleyParser& parser);
  // Whether all characters beyond ASCII lead back to the state. The end of the path is inside of
  // one, at `utf8`; where bytes led inside of characters is in `seen`.
  using Inside = std::vector<std::pair<Utf8State, int32_t>>;
  bool characters_return(EarleyParser& parser, int32_t state, Utf8State utf8, Inside& seen);

  const std::array<bool, 256>& borders_;
  ParserShape shape_;
  std::unordered_map<std::string, int32_t> known_;
  std::vector<State> states_;
  std::optional<Base> base_;
  std::vector<int32_t> path_;   // states on the way to here, from the walk's start
  std::vector<uint8_t> bytes_;  // that led from one to the next
  size_t rows_ = 0;             // of them that the parser has rows for
};

}  // namespace rudder::constraint
