// tokenizer_tool: the room's command line, driven by tools/tokenizer_diff against the reference.
//   encode TOKENIZER   a JSON string a line in; a line out of ids, their decodings and the streams'
//   decode TOKENIZER   a JSON list of ids a line in; the same decodings out
//   bench TOKENIZER SECONDS   a JSON string a line in; encode and stream-decode times out
//   render             {"template", "contexts"} a line in, the latter only where they differ from
//   the
//                      line before; a list of {"text"} or {"error", "code"} out
#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <iostream>
#include <span>

#include "rudder/base/json.h"
#include "rudder/text/chat_template.h"
#include "rudder/text/files.h"
#include "rudder/text/stream_decoder.h"
#include "rudder/text/tokenizer.h"

namespace rudder::text {
namespace {

namespace json = boost::json;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

int report(const Error& error) {
  fmt::print(stderr, "{}\n", error.to_string());
  return 1;
}

json::array to_json(const std::vector<int32_t>& ids) {
  return json::array(ids.begin(), ids.end());
}

std::string stream(const TokenizerPtr& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  StreamDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  text += decoder.flush();
  return text;
}

// The text of the second half of the ids, as an answer to a prompt of the first half.
std::string answer(const TokenizerPtr& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(tokenizer, false);
  decoder.prime(ids.first(ids.size() / 2));
  std::string text;
  for (const int32_t id : ids.subspan(ids.size() / 2)) text += decoder.push(id);
  text += decoder.flush();
  return text;
}

json::object decodings(const TokenizerPtr& tokenizer, const std::vector<int32_t>& ids) {
  return {{"text", tokenizer->decode(ids, false)},
          {"skip", tokenizer->decode(ids, true)},
          {"answer", answer(tokenizer, ids)},
          {"stream_text", stream(tokenizer, ids, false)},
          {"stream_skip", stream(tokenizer, ids, true)}};
}

int encode_lines(const TokenizerPtr& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    auto value = parse_json(line, "line");
    if (!value) return report(value.error());
    const std::string text(value->as_string());
    auto ids = tokenizer->encode(text);
    auto plain = tokenizer->encode(text, {.add_special_tokens = false, .parse_special = false});
    if (!ids) return report(ids.error());
    if (!plain) return report(plain.error());
    json::object out = decodings(tokenizer, *ids);
    out["ids"] = to_json(*ids);
    out["plain"] = to_json(*plain);
    fmt::print("{}\n", to_json_text(out));
  }
  return 0;
}

int decode_lines(const TokenizerPtr& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    auto value = parse_json(line, "line");
    if (!value) return report(value.error());
    std::vector<int32_t> ids;
    for (const auto& id : value->as_array()) ids.push_back(static_cast<int32_t>(id.as_int64()));
    fmt::print("{}\n", to_json_text(decodings(tokenizer, ids)));
  }
  return 0;
}

// Whole passes over the texts until `seconds` have gone; the best pass counts, since other load on
// the machine only slows a pass down.
int bench(const TokenizerPtr& tokenizer, double seconds) {
  std::vector<std::string> texts;
  std::string line;
  while (std::getline(std::cin, line)) {
    auto value = parse_json(line, "line");
    if (!value) return report(value.error());
    texts.emplace_back(value->as_string());
  }
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto begin = Clock::now();
  double best_encode = 1e9, best_stream = 1e9;
  size_t tokens = 0;
  while (since(begin) < seconds || tokens == 0) {
    tokens = 0;
    std::vector<std::vector<int32_t>> all;
    auto start = Clock::now();
    for (const std::string& text : texts) {
      auto ids = tokenizer->encode(text, {.add_special_tokens = false});
      if (!ids) return report(ids.error());
      tokens += ids->size();
      all.push_back(std::move(*ids));
    }
    best_encode = std::min(best_encode, since(start));
    start = Clock::now();
    size_t bytes = 0;
    for (const auto& ids : all) {
      StreamDecoder decoder(tokenizer, true);
      for (const int32_t id : ids) bytes += decoder.push(id).size();
      bytes += decoder.flush().size();
    }
    best_stream = std::min(best_stream, since(start));
    if (bytes == 0) return 1;
  }
  fmt::print("{{\"tokens\": {}, \"encode_s\": {:.6f}, \"stream_s\": {:.6f}}}\n", tokens,
             best_encode, best_stream);
  return 0;
}

json::object failure(const Error& error) {
  return {{"error", error.to_string()}, {"code", error_code_name(error.code)}};
}

int render_lines() {
  std::string line;
  json::array contexts;
  while (std::getline(std::cin, line)) {
    auto job = parse_json(line, "line");
    if (!job) return report(job.error());
    if (auto* given = job->as_object().if_contains("contexts")) contexts = given->as_array();
    const auto parsed = ChatTemplate::parse(job->at("template").as_string());
    json::array out;
    for (const auto& context : contexts) {
      if (!parsed) {
        out.push_back(failure(parsed.error()));
        continue;
      }
      const auto text = parsed->render(context.as_object());
      out.push_back(text ? json::object{{"text", *text}} : failure(text.error()));
    }
    fmt::print("{}\n", to_json_text(out));
  }
  return 0;
}

int run(const std::vector<std::string>& args) {
  if (args.size() == 1 && args[0] == "render") return render_lines();
  if (args.size() < 2) {
    fmt::print(stderr, "usage: tokenizer_tool encode|decode|bench|render ...\n");
    return 2;
  }
  auto file = read_text_file(args[1]);
  if (!file) return report(file.error());
  auto tokenizer = Tokenizer::from_json(*file);
  if (!tokenizer) return report(tokenizer.error());
  if (args[0] == "encode") return encode_lines(*tokenizer);
  if (args[0] == "decode") return decode_lines(*tokenizer);
  if (args[0] == "bench" && args.size() == 3) return bench(*tokenizer, std::stod(args[2]));
  return 2;
}

}  // namespace
}  // namespace rudder::text

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  return rudder::text::run({argv + 1, argv + argc});
}
