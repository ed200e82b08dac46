// StopMatcher: finds the first of several stop strings in a text that arrives in deltas, across
// token borders, and holds back exactly the text that may still become part of a stop string.
// StopSet is the compiled automaton (Aho-Corasick), immutable and shareable between the choices of
// a request; a StopMatcher is one sequence's state, owned by the engine thread. Linear in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::text {

struct StopLimits {
  size_t max_strings = 64;
  size_t max_bytes = 8192;  // of all strings together
};

class StopSet {
 public:
  // kInvalidArgument if a string is empty or a limit is passed; `where` is "stop" or "stop[i]".
  static Result<std::shared_ptr<const StopSet>> compile(std::vector<std::string> strings,
                                                        const StopLimits& limits = {});
  const std::vector<std::string>& strings() const { return strings_; }

 private:
  friend class StopMatcher;
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> edges;  // trie edges, sorted by byte
    int32_t fail = 0;
    int32_t depth = 0;   // bytes held back in this state
    int32_t match = -1;  // index of the longest stop string that ends here
  };
  void build();
  int32_t child(int32_t state, uint8_t byte) const;  // -1 if there is none
  int32_t step(int32_t state, uint8_t byte) const;

  std::vector<std::string> strings_;
  std::vector<Node> nodes_;
};

struct StopMatch {
  size_t index = 0;   // which string
  size_t offset = 0;  // byte offset of its first byte in the whole text
};

class StopMatcher {
 public:
  // `include_stop`: the matched string is part of the emitted text. `stops` may be null: nothing
  // ever matches and nothing is held back.
  StopMatcher(std::shared_ptr<const StopSet> stops, bool include_stop);

  // Text that is now safe to emit. After a match the rest of the text is dropped, and every later
  // push gives an empty string. Valid until the next call. The match is the one that ends first;
  // among those that end at the same byte, the longest.
  std::string_view push(std::string_view delta);
  // The held-back text, when the sequence ended without a match. Valid until the next call.
  std::string_view flush();

  const std::optional<StopMatch>& match() const { return match_; }

 private:
  std::shared_ptr<const StopSet> stops_;
  bool include_stop_;
  int32_t state_ = 0;
  size_t consumed_ = 0;  // bytes of text seen
  std::string held_;     // a proper prefix of some stop string
  std::string out_;
  std::optional<StopMatch> match_;
};

}  // namespace rudder::text
