// ProgramSymbols: the names of this program's functions by their addresses, also of those that no
// library could ask for. Read from the program's own file when it is made; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rudder {

class ProgramSymbols {
 public:
  // None are known where the file cannot be read or has been stripped of its symbols.
  static ProgramSymbols read();

  // "rudder::engine::Replica::run()"; for what has no name here, the file and the offset in it that
  // addr2line takes. `address` is one of this process.
  std::string name_of(const void* address) const;

 private:
  struct Function {
    uintptr_t begin = 0;  // in the file's own addresses
    uintptr_t size = 0;
    std::string name;  // mangled
  };
  std::vector<Function> functions_;  // by `begin`
  uintptr_t base_ = 0;               // of the loaded program: address minus address in the file
};

}  // namespace rudder
