// What a render may still use, and the errors by which it ends. One Budget a render, used by its
// thread alone; it outlives the values of the render.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::text::jinja {

// Thrown inside the interpreter and caught by ChatTemplate: it never leaves the room.
struct TemplateError {
  Error error;
};
[[noreturn]] void raise(std::string message);                // what Python refuses as well
[[noreturn]] void raise_unsupported(std::string_view what);  // what only we refuse
[[noreturn]] void raise_limit(std::string_view what);

struct Budget {
  uint64_t steps = 0;
  size_t memory = 0;
  size_t output = 0;
  int calls = 0;  // macro calls that may still be nested
  void spend(uint64_t count) {
    if (count > steps) raise_limit("steps");
    steps -= count;
  }
  // Before something of that size is made, so that a limit stops it in time.
  void check(size_t bytes) const {
    if (bytes > memory) raise_limit("memory");
  }
};

// Memory held by one value, given back on destruction.
class Charge {
 public:
  Charge(Budget& budget, size_t bytes);
  ~Charge() { budget_.memory += bytes_; }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Budget& budget_;
  size_t bytes_;
};

}  // namespace rudder::text::jinja
