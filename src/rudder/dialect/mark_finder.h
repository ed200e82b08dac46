// MarkFinder: finds marks in a text that comes byte by byte, and holds back bytes that may begin a
// mark. Internal to the room.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rudder::dialect {

class MarkFinder {
 public:
  // No mark may begin with another; empty ones are passed over.
  explicit MarkFinder(std::vector<std::string_view> marks) : marks_(std::move(marks)) {
    std::erase_if(marks_, [](std::string_view mark) { return mark.empty(); });
  }

  // The mark that the byte completes, or empty. Appends to `text` what is certain to be no part of
  // one.
  std::string_view push(char byte, std::string* text) {
    held_.push_back(byte);
    while (!held_.empty()) {
      for (const std::string_view mark : marks_) {
        if (!mark.starts_with(held_)) continue;
        if (mark.size() > held_.size()) return {};
        held_.clear();
        return mark;
      }
      text->push_back(held_.front());
      held_.erase(0, 1);
    }
    return {};
  }

  bool holds() const { return !held_.empty(); }
  // What is held back, once no more comes.
  std::string take_held() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string_view> marks_;
  std::string held_;
};

}  // namespace rudder::dialect
