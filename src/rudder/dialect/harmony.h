// Harmony, the dialect of gpt-oss: an answer is messages, each in a channel and some to a
// recipient.
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
// This file has its marks, its parser and its grammars; dialect.h and call_format.h call them.
// Internal to the room.
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "rudder/dialect/call_format.h"
#include "rudder/dialect/dialect.h"

namespace rudder::dialect::harmony {

inline constexpr std::string_view kStart = "<|start|>";
inline constexpr std::string_view kChannel = "<|channel|>";
inline constexpr std::string_view kConstrain = "<|constrain|>";
inline constexpr std::string_view kMessage = "<|message|>";
inline constexpr std::string_view kEnd = "<|end|>";
inline constexpr std::string_view kCall = "<|call|>";
inline constexpr std::string_view kReturn = "<|return|>";
inline constexpr std::array kMarks = {kStart, kChannel, kConstrain, kMessage, kEnd, kCall, kReturn};

// Messages of `analysis` are thoughts, those to a function are calls, all others are text. Marks
// and headers are no text; what is no message, and has no header, is.
std::unique_ptr<OutputParser> make_parser(const ParserSetup& setup, uint64_t seed);

// What the answer begins with, of a prompt: what its last message has already, "" in all but rare
// templates.
std::string_view opening_of(std::string_view prompt);

// As the functions of call_format.h. An answer has one call, whose mark ends it.
boost::json::object after_thoughts(const ParserSetup& setup, boost::json::object content,
                                   const FindSpecial& find_special);
boost::json::object calls(const ParserSetup& setup, const std::vector<CallableTool>& tools,
                          const FindSpecial& find_special);
// `content` null: any text. Without `forces`, arguments of strict tools alone satisfy their
// schemas.
boost::json::object content_or_calls(const ParserSetup& setup, const boost::json::object* content,
                                     const std::vector<CallableTool>& tools,
                                     const FindSpecial& find_special);

}  // namespace rudder::dialect::harmony
