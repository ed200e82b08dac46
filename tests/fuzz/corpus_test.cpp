// The corpus of every fuzz target, taken once: what a fuzzer found stays mended.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/step/recording.h"

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

// A reader refuses other versions at once, so a corpus of an old one tries nothing. New ones:
// `rudder generate --input FILE --record FOLDER`, one of a plain request, one of requests with
// steering and with a regex.
TEST(FuzzCorpusFiles, RecordingsAreOfTheVersionThatIsRead) {
  for (const char* name : {"plain", "masks_and_steering"}) {
    const std::string path =
        std::string(RUDDER_SOURCE_DIR) + "/tests/fuzz/corpus/recording/" + name;
    const auto reader = step::RecordingReader::open(path);
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
