// What an I/O thread keeps track of so that it can end it: connections and running generations.
// The thread's own. Thousands are idle: a sweep reads when each is to be looked at again, which lie
// one behind the other, and looks at few.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

namespace rudder::server {

class Endable {
 public:
  virtual ~Endable() = default;
  // From when on it is due as things stand; kNever. It is asked anew after kLookUs at the latest.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  virtual int64_t due_us() const = 0;
  virtual void on_due(int64_t now_us) = 0;  // some time after it has become due
  virtual void end_now() = 0;
};

class Members {
 public:
  // How late it is seen that a member has become due earlier than it had said.
  static constexpr int64_t kLookUs = 500'000;

  void add(const std::shared_ptr<Endable>& member);
  // Nothing happens where it is not there. Each leaves before it is destroyed.
  void remove(Endable* member);
  // Copies: whoever acts on a member may make others leave.
  std::vector<std::weak_ptr<Endable>> all() const { return owned_; }
  std::vector<std::weak_ptr<Endable>> due(int64_t now_us);

 private:
  std::vector<int64_t> look_us_;  // when to look at the member at this index
  std::vector<std::weak_ptr<Endable>> owned_;
  std::vector<Endable*> members_;
  std::unordered_map<Endable*, size_t> index_;
};

}  // namespace rudder::server
