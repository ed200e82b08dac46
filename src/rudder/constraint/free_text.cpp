#include "rudder/constraint/free_text.h"

#include <array>
#include <deque>
#include <map>
#include <utility>

#include "rudder/constraint/utf8_state.h"

namespace rudder::constraint {
namespace {

constexpr int32_t kNoText = -1;
constexpr int64_t kWorkOfNode = 300;
constexpr int64_t kWorkOfState = 500;
constexpr int64_t kStateBytes = 96;  // in the map, and waiting

class Texts {
 public:
  Texts(Fuel& fuel, const std::vector<std::string>& texts) : held_(fuel) {
    nodes_.emplace_back();
    for (size_t i = 0; i < texts.size(); ++i) {
      int32_t at = 0;
      for (const char c : texts[i]) {
        int32_t& next = nodes_[static_cast<size_t>(at)].next[static_cast<unsigned char>(c)];
        if (next < 0) {
          if (!fuel.burn(kWorkOfNode) || !held_.add(sizeof(Node))) return;
          at = next = static_cast<int32_t>(nodes_.size());
          nodes_.emplace_back();
        } else {
          at = next;
        }
      }
      int32_t& text = nodes_[static_cast<size_t>(at)].text;
      if (text == kNoText && at != 0) text = static_cast<int32_t>(i);
    }
    link_suffixes();
  }

  int32_t next(int32_t node, uint8_t byte) const {
    return nodes_[static_cast<size_t>(node)].next[byte];
  }
  int32_t text(int32_t node) const { return nodes_[static_cast<size_t>(node)].text; }

 private:
  struct Node {
    Node() { next.fill(-1); }
    std::array<int32_t, 256> next;
    int32_t text = kNoText;  // that ends here
  };

  // Every node by its longest proper suffix that is one, level by level.
  void link_suffixes() {
    std::deque<std::pair<int32_t, int32_t>> open = {{0, 0}};
    while (!open.empty()) {
      const auto [at, suffix] = open.front();
      open.pop_front();
      Node& node = nodes_[static_cast<size_t>(at)];
      const Node& shorter = nodes_[static_cast<size_t>(suffix)];
      if (at != 0 && shorter.text != kNoText &&
          (node.text == kNoText || shorter.text < node.text)) {
        node.text = shorter.text;
      }
      for (size_t byte = 0; byte < 256; ++byte) {
        const int32_t by_suffix = at == 0 ? 0 : shorter.next[byte];
        if (node.next[byte] < 0) {
          node.next[byte] = by_suffix;
        } else {
          open.emplace_back(node.next[byte], by_suffix);
        }
      }
    }
  }

  Held held_;
  std::deque<Node> nodes_;
};

}  // namespace

void take_free_text(RuleNfa& nfa, Fuel& fuel, const std::vector<std::string>& texts,
                    const std::vector<int32_t>& behind, int32_t begin, int32_t end) {
  const Texts automaton(fuel, texts);
  Held held(fuel);
  using Pair = std::pair<int32_t, Utf8State>;
  std::map<Pair, int32_t> states = {{{0, {}}, begin}};
  std::deque<Pair> open = {{0, {}}};
  nfa.link_free(begin, end);
  for (; !open.empty() && !fuel.out(); open.pop_front()) {
    const Pair pair = open.front();
    const int32_t from = states.at(pair);
    int32_t run_target = -1;
    int run_first = 0;
    const auto end_run = [&](int byte) {
      if (run_target >= 0) {
        nfa.link_bytes(from, static_cast<uint8_t>(run_first), static_cast<uint8_t>(byte - 1),
                       run_target);
      }
    };
    if (!fuel.burn(kWorkOfState) || !held.add(kStateBytes)) return;
    for (int byte = 0; byte <= 256; ++byte) {
      int32_t target = -1;
      Utf8State utf8 = pair.second;
      if (byte < 256 && next_utf8(utf8, static_cast<uint8_t>(byte))) {
        const int32_t node = automaton.next(pair.first, static_cast<uint8_t>(byte));
        if (const int32_t text = automaton.text(node); text != kNoText) {
          target = behind[static_cast<size_t>(text)];
        } else {
          const auto [known, is_new] = states.try_emplace({node, utf8}, -1);
          if (is_new) {
            known->second = nfa.add();
            if (utf8.left == 0) nfa.link_free(known->second, end);
            open.emplace_back(node, utf8);
          }
          target = known->second;
        }
      }
      if (byte == 256 || target != run_target) {
        end_run(byte);
        run_target = target;
        run_first = byte;
      }
    }
  }
}

}  // namespace rudder::constraint
