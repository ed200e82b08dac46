// OutputStore: finished outputs, for later sequences to be drafted for. Outputs are kept apart by a
// key, and a sequence sees those of its own key alone: what one tenant was told speeds up no other.
//
// The outputs of a key are in two trees. When the younger one holds half of the requests or bytes
// that a key may have, the older one is dropped and the younger one takes its place. Where all keys
// together pass the bound on bytes, the key that was not used for the longest time goes. Engine
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/draft/suffix_guess.h"
#include "rudder/draft/suffix_tree.h"

namespace rudder::draft {

class OutputStore {
 public:
  struct Limits {
    int32_t depth = 24;
    int32_t max_requests = 0;  // of one key; 0: nothing is kept
    int64_t max_bytes = 0;     // of all keys
  };
  explicit OutputStore(const Limits& limits) : limits_(limits) {}

  // Keeps an output once work() has come to it.
  void add(const std::string& key, std::span<const int32_t> output);
  // Files at most `most` tokens of what add() brought: a long output holds no step up.
  void work(int64_t most);

  // Adds what outputs of the key have behind the end of `context`.
  void add_to(SuffixGuess& guess, const std::string& key, std::span<const int32_t> context);

  int64_t bytes() const { return bytes_; }

 private:
  struct Shelf {
    std::unique_ptr<SuffixTree> older;
    std::unique_ptr<SuffixTree> younger;
    int32_t num_younger = 0;  // requests
    uint64_t last_use = 0;

    int64_t bytes() const;
  };
  struct Pending {
    std::string key;
    std::vector<int32_t> output;
    size_t num_filed = 0;
  };

  void file(Pending& pending, size_t count);
  void turn_over(Shelf& shelf) const;
  void keep_bound();

  const Limits limits_;
  std::unordered_map<std::string, Shelf> shelves_;
  std::deque<Pending> pending_;
  int64_t pending_tokens_ = 0;
  int64_t bytes_ = 0;  // of the shelves
  uint64_t num_uses_ = 0;
};

}  // namespace rudder::draft
