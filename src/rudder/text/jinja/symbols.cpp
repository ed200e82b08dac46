#include "rudder/text/jinja/symbols.h"

#include <algorithm>

namespace rudder::text::jinja {
namespace {

// Visits the names of a tree in the order in which the reference does.
class NameReader {
 public:
  explicit NameReader(std::set<std::string> names) : names_(std::move(names)) {}
  std::set<std::string> take() { return std::move(found_); }

  void visit(const Block& block) {
    for (const Node& node : block) visit(node);
  }

 private:
  void visit(const ExprPtr& expr) {
    if (expr != nullptr) visit(*expr);
  }
  void visit(const Arguments& arguments) {
    for (const ExprPtr& expr : arguments.positional) visit(expr);
    for (const auto& [name, expr] : arguments.named) visit(expr);
    visit(arguments.unpacked);
    visit(arguments.unpacked_named);
  }
  void visit(const Postfix& postfix) {
    for (const ExprPtr* expr : {&postfix.item, &postfix.begin, &postfix.end, &postfix.step}) {
      visit(*expr);
    }
    visit(postfix.arguments);
  }
  void visit(const Expr& expr) {
    if (expr.kind == Expr::Kind::kName && names_.contains(expr.text)) found_.insert(expr.text);
    for (const ExprPtr& operand : expr.operands) visit(operand);
    for (const Postfix& postfix : expr.postfixes) visit(postfix);
  }
  void visit(const Target& target) {
    if (!target.is_tuple && target.field.empty()) names_.erase(target.name);
    for (const Target& item : target.items) visit(item);
  }
  void visit(const MacroNode& macro) {
    for (const auto& [name, value] : macro.parameters) names_.erase(name);
    for (const auto& [name, value] : macro.parameters) visit(value);
    visit(macro.body);
  }
  void visit(const Node& node) {
    for (const auto& [condition, body] : node.branches) {
      visit(condition);
      visit(body);
    }
    visit(node.target);
    for (const auto& [target, value] : node.bindings) visit(target);
    for (const auto& [target, value] : node.bindings) visit(value);
    visit(node.expr);
    visit(node.arguments);
    if (node.macro != nullptr) visit(*node.macro);
    visit(node.body);
    visit(node.otherwise);
    visit(node.condition);
    for (const Postfix& filter : node.filters) visit(filter);
  }

  std::set<std::string> names_;
  std::set<std::string> found_;
};

}  // namespace

SlotRef FunctionScope::locate(int level, const std::string& name) {
  SlotRef slot_ref;
  FunctionScope* function = this;
  for (; level < function->base_level; function = function->outer) ++slot_ref.hops;
  const auto [found, added] =
      function->slots.try_emplace({level, name}, static_cast<int>(function->slots.size()));
  slot_ref.slot = found->second;
  return slot_ref;
}

std::optional<int> Symbols::find(const std::string& name) const {
  for (const Symbols* frame = this; frame != nullptr; frame = frame->parent_) {
    if (frame->names_.contains(name)) return frame->level_;
  }
  return std::nullopt;
}

void Symbols::declare_parameter(const std::string& name) {
  stored_.insert(name);
  names_[name] = {Load::Kind::kParameter};
}

void Symbols::load(const std::string& name) {
  if (!find(name)) names_[name] = {Load::Kind::kResolve};
}

void Symbols::store(const std::string& name) {
  stored_.insert(name);
  if (names_.contains(name)) return;
  const auto outer = parent_ != nullptr ? parent_->find(name) : std::nullopt;
  names_[name] = outer ? Meaning{Load::Kind::kAlias, *outer} : Meaning{Load::Kind::kNothing};
}

void Symbols::merge(const std::vector<Symbols>& branches) {
  std::set<std::string> stored;
  for (const Symbols& branch : branches) {
    stored.insert(branch.stored_.begin(), branch.stored_.end());
    for (const auto& [name, meaning] : branch.names_) names_[name] = meaning;
  }
  // Where one branch does not assign it, it has the value from further out.
  for (const std::string& name : stored) {
    if (!stored_.insert(name).second) continue;
    const auto outer = parent_ != nullptr ? parent_->find(name) : std::nullopt;
    names_[name] = outer ? Meaning{Load::Kind::kAlias, *outer} : Meaning{Load::Kind::kResolve};
  }
}

void Symbols::analyze(const Block& block) {
  for (const Node& node : block) analyze(node);
}

void Symbols::analyze(const Arguments& arguments) {
  for (const ExprPtr& expr : arguments.positional) analyze(*expr);
  for (const auto& [name, expr] : arguments.named) analyze(*expr);
  if (arguments.unpacked != nullptr) analyze(*arguments.unpacked);
  if (arguments.unpacked_named != nullptr) analyze(*arguments.unpacked_named);
}

void Symbols::analyze(const Expr& expr) {
  if (expr.kind == Expr::Kind::kName) load(expr.text);
  for (const ExprPtr& operand : expr.operands) analyze(*operand);
  for (const Postfix& postfix : expr.postfixes) {
    for (const ExprPtr* part : {&postfix.item, &postfix.begin, &postfix.end, &postfix.step}) {
      if (*part != nullptr) analyze(**part);
    }
    analyze(postfix.arguments);
  }
}

void Symbols::analyze(const Target& target, bool as_parameter) {
  for (const Target& item : target.items) analyze(item, as_parameter);
  if (target.is_tuple) return;
  if (!target.field.empty()) return load(target.name);
  as_parameter ? declare_parameter(target.name) : store(target.name);
}

void Symbols::analyze_if(const Node& node, size_t branch) {
  const auto& [condition, body] = node.branches[branch];
  analyze(*condition);
  std::vector<Symbols> branches(branch == 0 ? 3 : 1, *this);
  branches[0].analyze(body);
  if (branch == 0) {
    for (size_t i = 1; i < node.branches.size(); ++i) {
      if (node.branches[i].first != nullptr) {
        branches[1].analyze_if(node, i);
      } else {
        branches[2].analyze(node.branches[i].second);
      }
    }
  }
  merge(branches);
}

void Symbols::analyze(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kOutput:
    case Node::Kind::kFor:
      analyze(*node.expr);
      break;
    case Node::Kind::kIf:
      analyze_if(node, 0);
      break;
    case Node::Kind::kSet:
      analyze(*node.expr);
      analyze(node.target, false);
      break;
    case Node::Kind::kSetBlock:
      analyze(node.target, false);
      break;
    case Node::Kind::kMacro:
      store(node.macro->name);
      break;
    case Node::Kind::kCallBlock:
      if (node.expr != nullptr) analyze(*node.expr);
      analyze(node.arguments);
      break;
    case Node::Kind::kFilter:
      for (const Postfix& filter : node.filters) analyze(filter.arguments);
      break;
    case Node::Kind::kWith:
      for (const auto& [target, value] : node.bindings) analyze(*value);
      break;
    case Node::Kind::kText:
    case Node::Kind::kBreak:
    case Node::Kind::kContinue:
      break;
  }
}

Frame Symbols::frame(FunctionScope& function) const {
  Frame loads;
  for (const auto& [name, meaning] : names_) {
    Load load{meaning.kind, function.locate(level_, name).slot, {}, {}};
    if (meaning.kind == Load::Kind::kAlias) load.from = function.locate(meaning.level, name);
    if (meaning.kind == Load::Kind::kResolve) load.name = name;
    loads.push_back(std::move(load));
  }
  return loads;
}

std::set<std::string> find_reads(const Block& block, std::set<std::string> names) {
  NameReader reader(std::move(names));
  reader.visit(block);
  return reader.take();
}

bool assigns(const Target& target, const std::string& name) {
  if (!target.is_tuple) return target.field.empty() && target.name == name;
  return std::any_of(target.items.begin(), target.items.end(),
                     [&name](const Target& item) { return assigns(item, name); });
}

bool assigns(const Block& block, const std::string& name) {
  return std::any_of(block.begin(), block.end(), [&name](const Node& node) {
    if (assigns(node.target, name) || assigns(node.body, name) || assigns(node.otherwise, name)) {
      return true;
    }
    if (node.macro != nullptr && assigns(node.macro->body, name)) return true;
    return std::any_of(node.branches.begin(), node.branches.end(),
                       [&name](const auto& branch) { return assigns(branch.second, name); });
  });
}

}  // namespace rudder::text::jinja
