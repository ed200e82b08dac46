// What the templates of the families that are served write behind messages.
#include "rudder/text/turn_ends.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "rudder/base/utf8.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

// Bytes, and these special tokens from id 256 on.
std::shared_ptr<const Tokenizer> tokenizer_with(const std::vector<std::string>& special) {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_char(static_cast<uint8_t>(byte)));
    vocab[token] = byte;
  }
  json::array added;
  for (const std::string& content : special) {
    added.push_back({{"id", 256 + std::ssize(added)},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json::object file = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  auto tokenizer = Tokenizer::from_json(json::serialize(file));
  EXPECT_TRUE(tokenizer) << tokenizer.error().to_string();
  return tokenizer.value_or(nullptr);
}

// The tokens that are found, by their spelling.
std::vector<std::string> turn_ends(std::string_view chat_template,
                                   const std::vector<std::string>& special) {
  const json::object config = {{"bos_token", special[0]}, {"eos_token", special[1]}};
  const auto chat = ChatPrompt::from_json(json::serialize(config), chat_template);
  EXPECT_TRUE(chat) << chat.error().to_string();
  const auto tokenizer = tokenizer_with(special);
  std::vector<std::string> ends;
  for (const int32_t id : find_turn_ends(**chat, *tokenizer)) {
    ends.emplace_back(tokenizer->id_to_token(id));
  }
  return ends;
}

std::string family_template(const std::string& name) {
  std::ifstream file(RUDDER_SOURCE_DIR "/tools/template_diff/families/" + name + ".jinja");
  EXPECT_TRUE(file) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

using Ends = std::vector<std::string>;

constexpr std::string_view kMarkedTurns =
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr std::string_view kGemma =
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";
constexpr std::string_view kGemma4 =
    "{{ bos_token }}{% for m in messages %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<|turn>' + role + '\\n' + m.content | trim + '<turn|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}";
constexpr std::string_view kLlama2 =
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + "
    "' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('roles alternate') }}{% endif %}{% endfor %}";
constexpr std::string_view kPhi3 =
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}";
constexpr std::string_view kOlmo2 =
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

TEST(TurnEnds, AreWhatTheTemplatesOfTheFamiliesWrite) {
  // Llama 3 and its relatives.
  EXPECT_EQ(turn_ends(family_template("llama32"),
                      {"<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>",
                       "<|end_header_id|>", "<|end_of_text|>"}),
            Ends{"<|eot_id|>"});
  // Llama 2: a user's turn ends in plain text.
  EXPECT_EQ(turn_ends(kLlama2, {"<s>", "</s>"}), Ends{"</s>"});
  // Mistral, whose instruction marks are tokens of their own, or are not.
  EXPECT_EQ(turn_ends(family_template("mistral_v3"),
                      {"<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
                       "[TOOL_CALLS]"}),
            (Ends{"</s>", "[/INST]", "[/TOOL_RESULTS]"}));
  // Qwen 2 and Qwen 3.
  EXPECT_EQ(turn_ends(kMarkedTurns, {"<|endoftext|>", "<|im_end|>", "<|im_start|>"}),
            Ends{"<|im_end|>"});
  EXPECT_EQ(
      turn_ends(family_template("qwen3_coder"), {"<|endoftext|>", "<|im_end|>", "<|im_start|>"}),
      Ends{"<|im_end|>"});
  // Gemma 2, 3 and 4.
  EXPECT_EQ(turn_ends(kGemma, {"<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"}),
            Ends{"<end_of_turn>"});
  EXPECT_EQ(turn_ends(family_template("gemma3_tools"),
                      {"<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"}),
            Ends{"<end_of_turn>"});
  EXPECT_EQ(turn_ends(kGemma4, {"<bos>", "<eos>", "<|turn>", "<turn|>"}), Ends{"<turn|>"});
  // Phi-3 and Phi-4-mini.
  const std::vector<std::string> phi = {"<s>",           "<|endoftext|>", "<|end|>", "<|user|>",
                                        "<|assistant|>", "<|system|>",    "<|tool|>"};
  EXPECT_EQ(turn_ends(kPhi3, phi), Ends{"<|end|>"});
  EXPECT_EQ(turn_ends(family_template("phi4_mini"), phi), Ends{"<|end|>"});
  // OLMo 2: roles are plain text.
  EXPECT_EQ(turn_ends(kOlmo2, {"<|bos|>", "<|endoftext|>"}), Ends{"<|endoftext|>"});
}

// The names mean nothing.
TEST(TurnEnds, FollowTheTemplateAlone) {
  const std::string source =
      "{% for m in messages %}{{ m.role + '~' + m.content + '<over>' }}{% endfor %}";
  EXPECT_EQ(turn_ends(source, {"<a>", "<|im_end|>", "<over>"}), Ends{"<over>"});
  EXPECT_EQ(turn_ends(source, {"<a>", "<|im_end|>"}), Ends{});
  EXPECT_EQ(turn_ends("{{ raise_exception('never') }}", {"<a>", "<b>"}), Ends{});
}

}  // namespace
}  // namespace rudder::text
