// OpenCompiles: grammars that the engine process was told to compile and has not answered for,
// which the next process is told as well. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rudder/engine/engine.h"
#include "rudder/remote/messages.h"

namespace rudder::remote {

class OpenCompiles {
 public:
  void add(uint64_t id, std::string frame, engine::FormCompiled done) {
    open_.emplace(id, Compile{std::move(frame), std::move(done)});
  }
  // What to call with told(answer), without locks; nothing: it answers no compile.
  std::optional<engine::FormCompiled> take(uint64_t id) {
    const auto compile = open_.extract(id);
    if (compile.empty()) return std::nullopt;
    return std::move(compile.mapped().done);
  }
  template <typename Send>
  void each_frame(const Send& send) const {
    for (const auto& [id, compile] : open_) send(compile.frame);
  }
  // All of them, which are told `error` without locks.
  void fail_all(const Error& error) {
    for (const auto& [id, compile] : open_) compile.done(tl::unexpected<Error>(error));
    open_.clear();
  }

  // The engine process holds the grammar, and compiles it again where it had to let it go.
  static Result<engine::FormLease> told(const Answer& answer) {
    if (answer.error) return tl::unexpected<Error>(*answer.error);
    return engine::FormLease(std::make_shared<int>(0));
  }

 private:
  struct Compile {
    std::string frame;
    engine::FormCompiled done;
  };
  std::map<uint64_t, Compile> open_;
};

}  // namespace rudder::remote
