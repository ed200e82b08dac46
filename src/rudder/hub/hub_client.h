// The hub's API as far as fetching a model needs it, over one connection: which commit a revision
// is, what files a commit has, where a file lies. Passing faults are tried again. One thread at a
// time uses an object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/hub/http_client.h"
#include "rudder/hub/hub_answers.h"
#include "rudder/hub/listing.h"

namespace rudder::hub {

constexpr int kMaxTries = 5;  // in a row without a byte

class HubClient {
 public:
  // `settings` outlive it.
  static Result<std::unique_ptr<HubClient>> create(const HubSettings& settings);

  // The commit that a revision is now. With one try, a hub that does not answer is known at once.
  Result<RepositoryState> resolve(const AskedFor& asked, int max_tries);
  // Every file of a commit.
  Result<std::vector<RemoteFile>> list_files(const AskedFor& asked, const std::string& commit);

 private:
  HubClient(const HubSettings& settings, std::unique_ptr<HttpClient> http);
  Result<HttpAnswer> get_api(const std::string& url, const AskedFor& asked, int max_tries);

  const HubSettings& settings_;
  const std::unique_ptr<HttpClient> http_;
};

std::string file_url(const HubSettings& settings, const std::string& repository,
                     const std::string& commit, const std::string& path);

// `text` as a part of an address: all but letters, digits and "-._~" as %XX; slashes too, unless
// they are kept.
std::string percent_encode(std::string_view text, bool keeps_slashes);

// What a failed transfer means for a person; kUnavailable stays what it is.
Error describe_transfer(Error error, const HubSettings& settings);

}  // namespace rudder::hub
