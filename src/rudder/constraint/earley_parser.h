// EarleyParser: the state of an output in a grammar, advanced byte by byte (J. Earley, "An
// efficient context-free parsing algorithm", 1970). It keeps a table with one row for each byte:
// the items that the rules may be at, the symbols that began there with the items that wait for
// their ends, and the terminals that are open. FormMatcher owns one for each choice and also
// advances it on trial while it writes a mask: taking rows back is as cheap as adding them. One
// thread at a time.
// Two known amendments keep rows small. A rule that may be empty is completed as soon as it begins
// (Aycock and Horspool, 2002). A rule that is the last item of another one returns directly to the
// items that wait for that one (Leo, 1991), so recursion on the right costs nothing per round.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "rudder/constraint/grammar.h"
#include "rudder/constraint/terminal_tables.h"

namespace rudder::constraint {

// A grammar with the tables of its terminals; immutable, shared by parsers.
struct ParserGrammar {
  struct Terminal {
    std::shared_ptr<const TerminalTables> tables;
    ExcludedValues excluded;
    bool quoted = true;
    bool unique = false;
    bool is_key = false;
    int32_t min = 0;  // that is to be counted: a pattern's bounds are in its tables
    int32_t max = TerminalTables::kNoLimit;
    // Of a unique one with a pattern, by state (text_counts.h); empty where each can go on.
    std::vector<int32_t> texts = {};
    int64_t choices = 0;  // of one of a set: characters that are in it

    // How many texts there are from a state behind `chars` characters, kManyTexts at the most.
    int32_t texts_from(TerminalDfa::State state, int32_t chars) const;
    // Of a unique one: whether a text may have to end.
    bool may_have_to_end() const { return !texts.empty() || max != TerminalTables::kNoLimit; }
  };

  const Terminal& terminal(int32_t symbol) const {
    return terminals[static_cast<size_t>(symbol - rules.num_rules())];
  }

  // Finds `borders` of what is there.
  void find_borders();

  Grammar rules;
  std::vector<Terminal> terminals;
  // Bytes that some rule or terminal tells from the byte before them.
  std::array<bool, 256> borders = {};
};

class EarleyParser {
 public:
  // A rule that is at one of its states.
  struct Item {
    int32_t state = 0;
    int32_t origin = 0;  // the row that the rule began in; kWhole
    int32_t count = 0;   // rounds, of a rule that counts
    bool operator==(const Item&) const = default;
  };
  // `item` goes on when the symbol, begun in the row that this is in, ends.
  struct Waiting {
    int32_t symbol = 0;
    Item item;
  };
  // A terminal that has begun and not ended.
  struct Open {
    int32_t symbol = 0;
    int32_t row = 0;  // that it began in
    int32_t chars = 0;
    int32_t excluded = ExcludedValues::kOff;
    TerminalDfa::State state = TerminalDfa::kOpening;
  };
  static constexpr int32_t kWhole = -1;  // origin of the whole output
  static constexpr int32_t kDone = -1;   // state of an item that waits for the whole output's end

  explicit EarleyParser(const ParserGrammar& grammar);

  int32_t num_rows() const { return static_cast<int32_t>(accepting_.size()); }
  // Items of the last row that a byte or a token may move.
  std::span<const Item> items() const { return row_of(items_, item_ends_, num_rows() - 1); }
  std::span<const Open> open() const { return row_of(open_, open_ends_, num_rows() - 1); }
  // In the order of their symbols.
  std::span<const Waiting> waiting(int32_t row) const {
    return row_of(waiting_, waiting_ends_, row);
  }
  std::span<const Waiting> waiting(int32_t row, int32_t symbol) const;
  bool accepting() const { return accepting_.back() != 0; }

  // Adds a row; false, and none, when the byte cannot come next.
  bool advance(uint8_t byte);
  // Whether advance() would add one.
  bool may_advance(uint8_t byte) const;
  void pop_rows(int32_t count);
  // Goes on by a token: by its id where the grammar names it, and by its bytes. False, and no
  // change, when it may not come next.
  bool accept(int32_t token, std::string_view bytes);

  // How far the parser is: return_to() takes back every row that was added since.
  struct Checkpoint {
    int32_t num_rows = 0;
    bool overflowed = false;
  };
  Checkpoint checkpoint() const { return {num_rows(), overflowed_}; }
  void return_to(const Checkpoint& checkpoint) {
    pop_rows(num_rows() - checkpoint.num_rows);
    overflowed_ = checkpoint.overflowed;
  }

  // Adds a row of what follows when the open terminal ends here.
  void push_behind(const Open& open);
  // Adds a row of the items, and of those open terminals for which `keep` is true, of the last.
  template <typename Keep>
  void push_part(const Keep& keep) {
    begin_row();
    const std::span<const Item> items = this->items();
    queue_.assign(items.begin(), items.end());
    for (const Open& one : open()) {
      if (keep(one)) next_open_.push_back(one);
    }
    store_row();
  }

  // Items and edges looked at, ever: what an ambiguous grammar makes dear.
  uint64_t steps() const { return steps_; }
  // A row had more items than there may be; what came after it is not the grammar's.
  bool overflowed() const { return overflowed_; }
  // As if one had: its rows together have become too large.
  void give_up() { overflowed_ = true; }
  // Of all rows, with those that wait.
  size_t num_items() const { return items_.size() + waiting_.size() + open_.size(); }

 private:
  // The items or waiting items of the row that is being made, each once.
  class Once {
   public:
    void clear();
    bool add(int32_t symbol, const Item& item);  // false: it is there

   private:
    struct Slot {
      uint32_t epoch = 0;
      int32_t symbol = 0;
      Item item;
    };
    void grow();
    std::vector<Slot> slots_ = std::vector<Slot>(64);
    uint32_t epoch_ = 1;
    size_t size_ = 0;
  };

  template <typename T>
  static std::span<const T> row_of(const std::vector<T>& all, const std::vector<uint32_t>& ends,
                                   int32_t row) {
    const uint32_t begin = row == 0 ? 0 : ends[static_cast<size_t>(row) - 1];
    return {all.data() + begin, ends[static_cast<size_t>(row)] - begin};
  }

  void begin_row();
  void scan(uint8_t byte);
  void close_row();
  void store_row();
  void push(const Item& item);
  void process(const Item& item);
  void begin_symbol(int32_t symbol, const Item& behind, const Item& from);
  void wait(int32_t symbol, const Item& item, bool pass_empty = true);
  void end_symbol(int32_t symbol, int32_t row);
  void step(const Open& open, uint8_t byte);
  template <typename Take>
  void for_each_target(int32_t state, uint8_t byte, const Take& take) const;

  const ParserGrammar& grammar_;
  const Grammar& rules_;
  std::vector<Item> items_;
  std::vector<Waiting> waiting_;
  std::vector<Open> open_;
  std::vector<uint32_t> item_ends_, waiting_ends_, open_ends_;
  std::vector<uint8_t> accepting_;

  // Of the row that is being made.
  std::vector<Item> queue_;
  std::vector<Waiting> next_waiting_;
  std::vector<Open> next_open_;
  bool next_accepting_ = false;
  Once queued_;
  Once waits_;
  uint64_t steps_ = 0;
  bool overflowed_ = false;
};

}  // namespace rudder::constraint
