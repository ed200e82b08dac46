// DecodeChain: decoders of a tokenizer one behind the other, in any order, as a stream: what token
// by token comes out is the front of what the whole list gives. DecodePipeline has the usual orders
// as a table; this is every other one. Immutable; any thread. A DecodeChainState belongs to one
// sequence.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/decode_stage.h"

namespace rudder::text {

struct DecodeChainState {
  std::vector<DecodeStageState> stages;
  std::string prompt;  // text of the prompt that has not come out yet: it is not the answer's
};

class DecodeChain {
 public:
  // `spelling(id)` is a token as the first decoder sees it, empty where there is none.
  static Result<std::shared_ptr<const DecodeChain>> parse(
      const boost::json::value& decoder, int32_t size,
      const std::function<std::string_view(int32_t)>& spelling);

  void push(DecodeChainState& state, std::string_view token, std::string& out) const;
  void flush(DecodeChainState& state, std::string& out) const;
  void end_prompt(DecodeChainState& state) const;
  std::string inside(std::string_view token) const;

 private:
  void take(DecodeChainState& state, size_t stage, std::string_view piece, bool ends,
            std::string& out) const;
  void finish(DecodeChainState& state, std::string& out) const;
  static void leave_out_prompt(DecodeChainState& state, std::string& text);

  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

}  // namespace rudder::text
