// Symbols: the names that one frame of a template knows, and what they mean where it begins. Used
// by the resolver.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rudder/text/jinja/ast.h"

namespace rudder::text::jinja {

// The variables of a function. A variable is told by its frame's level and its name, so that blocks
// beside each other share theirs, as they do in the reference.
struct FunctionScope {
  int base_level = 0;  // of its outermost frame
  FunctionScope* outer = nullptr;
  std::map<std::pair<int, std::string>, int> slots;

  // Where the function finds the variable.
  SlotRef locate(int level, const std::string& name);
};

class Symbols {
 public:
  explicit Symbols(const Symbols* parent = nullptr)
      : parent_(parent), level_(parent == nullptr ? 0 : parent->level_ + 1) {}

  int level() const { return level_; }
  // The level of the frame whose variable the name means here.
  std::optional<int> find(const std::string& name) const;
  void declare_parameter(const std::string& name);
  void load(const std::string& name);
  void store(const std::string& name);

  // The names after an if: its branches began as copies of this.
  void merge(const std::vector<Symbols>& branches);
  void analyze(const Block& block);
  void analyze(const Expr& expr);
  void analyze(const Arguments& arguments);
  void analyze(const Target& target, bool as_parameter);

  // What entering the frame does, for `function`, which it belongs to.
  Frame frame(FunctionScope& function) const;

 private:
  struct Meaning {
    Load::Kind kind;
    int level = 0;  // of an alias: where it comes from
  };
  void analyze(const Node& node);
  void analyze_if(const Node& node, size_t branch);

  const Symbols* parent_;
  int level_;
  std::map<std::string, Meaning> names_;
  std::set<std::string> stored_;
};

// Does the block read one of `names` before it assigns it? Looks into everything inside it.
std::set<std::string> find_reads(const Block& block, std::set<std::string> names);
// Does anything inside assign the name?
bool assigns(const Block& block, const std::string& name);
bool assigns(const Target& target, const std::string& name);

}  // namespace rudder::text::jinja
