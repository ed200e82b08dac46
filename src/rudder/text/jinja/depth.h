// Depth: one level of the interpreter's recursion, for as long as it lives. Bounds the machine's
// stack: a level takes up to about 1 KB of it.
#pragma once

#include "rudder/text/jinja/interpreter.h"

namespace rudder::text::jinja {

class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& in) : in_(in) {
    in_.budget_.spend(1);
    if (in_.depth_ >= kMost) raise_limit("depth");
    ++in_.depth_;
  }
  ~Depth() { --in_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  static constexpr int kMost = 800;
  Interpreter& in_;
};

}  // namespace rudder::text::jinja
