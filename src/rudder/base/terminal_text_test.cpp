#include "rudder/base/terminal_text.h"

#include <gtest/gtest.h>

namespace rudder {
namespace {

TEST(TerminalText, WhatATerminalObeysIsWrittenOut) {
  EXPECT_EQ(terminal_text("a\x1b[2J\x07z"), "a\\x1b[2J\\x07z");
  EXPECT_EQ(terminal_text(std::string_view("\0\r\x7f", 3)), "\\x00\\x0d\\x7f");
  EXPECT_EQ(terminal_text("\xc2\x9b"
                          "31m"),
            "\\x9b31m")
      << "a terminal's CSI in one character";
}

TEST(TerminalText, TheRestStaysAsItIs) {
  for (const char* text :
       {"", "a line\n\tand another", "naïve 東京 €", "\xc2\xa0", "\xc2", "\xff"}) {
    EXPECT_EQ(terminal_text(text), text);
  }
}

}  // namespace
}  // namespace rudder
