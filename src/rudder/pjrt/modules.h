// Modules: the compiled modules of one client, made of their texts when they are first asked for.
// With a folder they are also kept in files, under a name that the text and all of the client's
// identity make (a plugin runs what another one compiled wrongly, or not at all). One thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/pjrt/plugin.h"

namespace rudder::pjrt {

class Modules {
 public:
  // `client` outlives it. An empty folder: no files.
  Modules(const Client& client, std::string folder) : client_(client), folder_(std::move(folder)) {}

  // kInternal: the compiler refuses the text; with its message. A file that cannot be read, or that
  // is not what it should be, is compiled again.
  Result<const Executable*> get(std::string_view text);

  int64_t num_compiled() const { return num_compiled_; }
  int64_t num_loaded() const { return num_loaded_; }

 private:
  using Key = std::array<uint64_t, 2>;

  std::unique_ptr<Executable> load(const std::string& path) const;
  void store(const Executable& executable, const std::string& path) const;

  const Client& client_;
  const std::string folder_;
  std::map<Key, std::unique_ptr<Executable>> made_;
  int64_t num_compiled_ = 0;
  int64_t num_loaded_ = 0;
};

}  // namespace rudder::pjrt
