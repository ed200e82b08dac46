// Looks for schemas that cost most to compile for each of their bytes: random ones, of which the
// dearest is changed a little at a time. For the tests of the bounds of a compile, which say what
// each costs. Tests only; one thread.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace rudder::constraint {

class HostileSearch {
 public:
  explicit HostileSearch(uint32_t seed) : random_(seed) {}

  // The text of a schema to try.
  const std::string& next();
  // What it cost: by its greatest share of a bound.
  void report(double cost);
  // Of the dearest for its bytes so far.
  const std::string& best_text() const { return best_text_; }

 private:
  size_t pick(size_t count) { return random_() % count; }
  boost::json::value schema(int depth);
  boost::json::value value(int depth);
  const char* name();
  boost::json::value number();
  std::string text_form();
  void add_keyword(boost::json::object& schema, int depth);
  void change(boost::json::value& whole);

  std::mt19937 random_;
  boost::json::value now_;  // the dearest since the last new beginning
  boost::json::value tried_;
  double cost_ = -1;  // for each byte, of `now_`
  int misses_ = 0;    // since it was found
  std::string text_;
  std::string best_text_;
  double best_cost_ = -1;
};

}  // namespace rudder::constraint
