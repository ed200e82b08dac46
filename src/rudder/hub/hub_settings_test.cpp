#include "rudder/hub/hub_settings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pwd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace rudder::hub {
namespace {

Result<HubSettings> settings_of(const std::map<std::string, std::string>& variables) {
  return read_hub_settings([variables](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  });
}

TEST(HubSettings, DefaultsAreThoseOfTheHubsOwnTool) {
  const auto settings = settings_of({{"HOME", "/nowhere/u"}});
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(settings->endpoint, "https://huggingface.co");
  EXPECT_EQ(settings->cache, "/nowhere/u/.cache/huggingface/hub");
  EXPECT_EQ(settings->token, "");
  EXPECT_FALSE(settings->offline);
}

TEST(HubSettings, FoldersComeFromTheNearestVariable) {
  EXPECT_EQ(settings_of({{"XDG_CACHE_HOME", "/x"}})->cache, "/x/huggingface/hub");
  EXPECT_EQ(settings_of({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/h"}})->cache, "/h/hub");
  EXPECT_EQ(settings_of({{"HF_HOME", "/h"}, {"HUGGINGFACE_HUB_CACHE", "/l"}})->cache, "/l");
  EXPECT_EQ(settings_of({{"HUGGINGFACE_HUB_CACHE", "/l"}, {"HF_HUB_CACHE", "/c"}})->cache, "/c");
  EXPECT_EQ(settings_of({{"HOME", "/u"}, {"HF_HUB_CACHE", "~/c"}})->cache, "/u/c");
  EXPECT_EQ(settings_of({{"BIG", "/d"}, {"HF_HUB_CACHE", "$BIG/c/${BIG}x/$NONE"}})->cache,
            "/d/c//dx/$NONE");
}

TEST(HubSettings, FoldersOfOtherUsersAreTheirs) {
  const passwd* const root = getpwuid(0);
  if (root == nullptr) GTEST_SKIP() << "no user is known here";
  EXPECT_EQ(settings_of({{"HF_HOME", fmt::format("~{}/x", root->pw_name)}, {"HOME", "/h"}})->cache,
            fmt::format("{}/x/hub", root->pw_dir));
  EXPECT_EQ(settings_of({{"HF_HUB_CACHE", "~nobody-is-called-so/x"}})->cache,
            "~nobody-is-called-so/x");
}

TEST(HubSettings, ATokenFileThatCannotBeReadIsTold) {
  const std::string folder = testing::TempDir();
  const auto settings = settings_of({{"HF_TOKEN_PATH", folder}});
  ASSERT_FALSE(settings.has_value());
  EXPECT_EQ(settings.error().where, folder);
  EXPECT_EQ(settings_of({{"HF_TOKEN_PATH", folder + "/none"}})->token, "");
  EXPECT_TRUE(settings_of({{"HF_TOKEN_PATH", folder}, {"HF_TOKEN", "hf_x"}}).has_value());
}

TEST(HubSettings, OfflineHasTheHubsWords) {
  for (const char* word : {"1", "on", "YES", "True"}) {
    EXPECT_TRUE(settings_of({{"HF_HUB_OFFLINE", word}})->offline) << word;
    EXPECT_TRUE(settings_of({{"TRANSFORMERS_OFFLINE", word}})->offline) << word;
  }
  EXPECT_FALSE(settings_of({{"HF_HUB_OFFLINE", "0"}})->offline);
}

TEST(HubSettings, EndpointsAreWebAddresses) {
  EXPECT_EQ(settings_of({{"HF_ENDPOINT", "http://127.0.0.1:80/hub//"}})->endpoint,
            "http://127.0.0.1:80/hub");
  for (const char* wrong : {"file:///etc", "hub.example", "https://", "https://u:p@hub.example",
                            "ftp://hub.example", "https://hub.example/?x", "https://a b"}) {
    const auto settings = settings_of({{"HF_ENDPOINT", wrong}});
    ASSERT_FALSE(settings.has_value()) << wrong;
    EXPECT_EQ(settings.error().where, "HF_ENDPOINT");
  }
}

TEST(HubSettings, TokensComeFromVariablesThenFiles) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "hub_settings_token";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "token") << "  hf_file\n";
  const std::string home = folder.string();
  EXPECT_EQ(settings_of({{"HF_HOME", home}})->token, "hf_file");
  EXPECT_EQ(settings_of({{"HF_HOME", home}})->token_source, home + "/token");
  EXPECT_EQ(settings_of({{"HF_TOKEN_PATH", home + "/token"}})->token, "hf_file");
  EXPECT_EQ(settings_of({{"HF_HOME", home}, {"HF_TOKEN", "hf_own\r\n"}})->token, "hf_own");
  EXPECT_EQ(settings_of({{"HF_HOME", home}, {"HUGGING_FACE_HUB_TOKEN", "old"}})->token, "old");
  EXPECT_EQ(settings_of({{"HF_TOKEN", "x"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})->token, "");
  EXPECT_FALSE(settings_of({{"HF_TOKEN", "a b"}}).has_value());
}

TEST(HubSettings, TheVariableThatErrorsNameGoesFirst) {
  EXPECT_EQ(settings_of({{"CURL_CA_BUNDLE", "/c"}, {"REQUESTS_CA_BUNDLE", "/r"}})->certificates,
            "/r");
  EXPECT_EQ(settings_of({{"SSL_CERT_FILE", "/s"}, {"REQUESTS_CA_BUNDLE", "/r"}})->certificates,
            "/s");
}

TEST(HubSettings, TimeoutsAreSeconds) {
  EXPECT_EQ(settings_of({{"HF_HUB_DOWNLOAD_TIMEOUT", "30"}})->timeout_s, 30);
  for (const char* wrong : {"0", "-1", "x", "5s", "99999"}) {
    EXPECT_FALSE(settings_of({{"HF_HUB_DOWNLOAD_TIMEOUT", wrong}}).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace rudder::hub
