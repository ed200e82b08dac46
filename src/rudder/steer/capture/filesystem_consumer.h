// The consumer `filesystem`: rows as files below a folder of the operator's choice. Layouts:
//   files   root/TAG/REQUEST/LAYER_SITE.bin with LAYER_SITE.json (key_file.h)
//   shards  root/TAG/shard-*.safetensors, rows of many requests (shard.h)
// Request options: "tag", "request_id" (slugs), "layout". A request's result comes when its files
// are on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/consumers.h"
#include "rudder/steer/capture/shard.h"
#include "rudder/steer/capture/store.h"

namespace rudder::steer::capture {

struct FilesystemSettings {
  std::string root;
  std::string tag = "default";
  bool use_shards = false;  // unless the request says otherwise
  bool fsync = true;
  OnCollision on_collision = OnCollision::kSuffix;
  int32_t writer_threads = 4;
  int32_t max_open_files = 256;
  ShardBounds shards;

  // root=DIR, tag=, layout=files|shards, fsync=, on_collision=overwrite|error|suffix,
  // writer_threads=, max_open_files=, shard_bytes=, shard_age_ms=
  static Result<FilesystemSettings> parse(ConsumerFlag& flag);
};

Result<std::shared_ptr<Consumer>> make_filesystem_consumer(const FilesystemSettings& settings);

}  // namespace rudder::steer::capture
