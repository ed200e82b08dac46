// Fetches blobs over several connections, each file in ranges, and checks them: what stands under a
// blob's name is whole and has the hash that the listing says. A cut transfer goes on where it was
// cut, in this process or a later one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/hub/hub_settings.h"
#include "rudder/hub/listing.h"

namespace rudder::hub {

struct BlobDownload {
  RemoteFile file;
  std::string url;
  std::string blob_path;  // its folder is there
};

struct DownloadSettings {
  int connections = 8;
  int64_t range_bytes = int64_t{64} << 20;
  // Tests throw in it: called on its thread before each range is asked for.
  std::function<void()> on_range = {};
};

// Returns when all of them are there, or with the first Error that no further try mends; what came
// by then stays for the next process. What is thrown on a thread of the download, or by `progress`,
// is such an Error too. `progress` counts bytes and is called on the caller's thread.
Result<void> download_blobs(const HubSettings& hub, const std::string& repository,
                            std::vector<BlobDownload> blobs, const DownloadSettings& settings,
                            const ProgressFn& progress);

}  // namespace rudder::hub
