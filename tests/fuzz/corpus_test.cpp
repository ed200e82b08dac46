// The corpus of every fuzz target, taken once: what a fuzzer found stays mended.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "form_run.h"
#include "rudder/record/recording.h"

namespace rudder::fuzz {

#define RUDDER_FUZZ_TARGET(name) void fuzz_##name(std::string_view input);
#include "fuzz_targets.inc"
#undef RUDDER_FUZZ_TARGET

namespace {

struct CorpusTarget {
  const char* name;
  void (*run)(std::string_view input);
};

constexpr CorpusTarget kTargets[] = {
#define RUDDER_FUZZ_TARGET(name) {#name, fuzz_##name},
#include "fuzz_targets.inc"
#undef RUDDER_FUZZ_TARGET
};

class FuzzCorpus : public ::testing::TestWithParam<CorpusTarget> {};

TEST_P(FuzzCorpus, HasTheProperties) {
  const std::string folder =
      std::string(RUDDER_SOURCE_DIR) + "/tests/fuzz/corpus/" + GetParam().name;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry);
  std::ranges::sort(files);
  ASSERT_GE(files.size(), 2U);
  for (const auto& file : files) {
    SCOPED_TRACE(file.string());
    std::ifstream stream(file, std::ios::binary);
    const std::string input(std::istreambuf_iterator<char>(stream), {});
    ASSERT_TRUE(stream.good() || stream.eof());
    GetParam().run(input);  // aborts where a property does not hold
    // Inputs that end early are where readers run past the end.
    GetParam().run(std::string_view(input).substr(0, input.size() / 2));
  }
  GetParam().run("");
}

// Each token of such a form is dearer than the one before.
TEST(FuzzForms, WorkIsBoundedHoweverAmbiguousTheyAre) {
  const constraint::GrammarSpec ambiguous = {constraint::GrammarKind::kEbnf,
                                             "root ::= e \"y\"\ne ::= e e | \"a\""};
  const std::string text(3000, 'a');
  const auto form = FormRun::compile(ambiguous);
  ASSERT_TRUE(form) << form.error().to_string();
  EXPECT_EQ(form->accepts("aaay"), true);
  std::mt19937_64 choices(1);
  for (int i = 0; i < 10; ++i) {
    form->walk(choices);
    form->accepts(text);
  }
  EXPECT_GE(form->steps(), FormRun::kSteps) << "else the form is none of those";
  EXPECT_LE(form->steps(), 3 * FormRun::kSteps) << "one mask more, at most";
  EXPECT_EQ(form->accepts("aaay"), std::nullopt) << "nobody looks any more";
}

TEST(FuzzForms, OrdinaryOnesAreLookedAtToTheEnd) {
  const auto form = FormRun::compile(
      {constraint::GrammarKind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"string","maxLength":20},)"
       R"("b":{"type":"array","items":{"type":"integer"},"maxItems":4}},"required":["a","b"]})"});
  ASSERT_TRUE(form) << form.error().to_string();
  std::mt19937_64 choices(1);
  int num_texts = 0;
  for (int i = 0; i < 10; ++i) {
    const auto text = form->walk(choices);
    if (!text) continue;
    ++num_texts;
    EXPECT_EQ(form->accepts(*text), true) << *text;
  }
  EXPECT_GE(num_texts, 3);
  EXPECT_LE(form->steps(), FormRun::kSteps / 4);
}

// A reader refuses other versions at once, so a corpus of an old one tries nothing. New ones:
// `rudder generate --input FILE --record FOLDER`, one of a plain request, one of requests with
// steering and with a regex.
TEST(FuzzCorpusFiles, RecordingsAreOfTheVersionThatIsRead) {
  for (const char* name : {"plain", "masks_and_steering"}) {
    const std::string path =
        std::string(RUDDER_SOURCE_DIR) + "/tests/fuzz/corpus/recording/" + name;
    const auto reader = record::RecordingReader::open(path);
    ASSERT_TRUE(reader) << reader.error().to_string();
    size_t num_records = 0;
    while (true) {
      const auto record = (*reader)->next();
      ASSERT_TRUE(record) << record.error().to_string();
      if (!*record) break;
      ++num_records;
    }
    EXPECT_GE(num_records, 4U) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, ::testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace rudder::fuzz
