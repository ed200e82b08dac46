// KeyFile: the rows of one (request, layer, site) in a file of their own, raw and in order, with a
// JSON file that describes them. One writer's thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/sha256.h"
#include "rudder/steer/capture/store.h"
#include "rudder/steer/capture/writer_pool.h"

namespace rudder::steer::capture {

class KeyFile {
 public:
  KeyFile(std::shared_ptr<Store> store, RowLayout layout)
      : store_(std::move(store)), layout_(layout) {}

  // An Error ends the key: nothing of it is published.
  Result<void> append(Writer& writer, int32_t position, std::span<const std::byte> row);
  // No more rows come: both files are written, and on their way to the disk. `about` is put into
  // the JSON: `"key":value,...` of the request.
  Result<void> finish(Writer& writer, const std::string& about);
  // After finish(), as late as there is other work: "LAYER_SITE.bin" gets its name, then
  // "LAYER_SITE.json": who finds the second finds the first whole. Empty when there are no rows.
  Result<std::vector<std::string>> publish(Writer& writer, const Folder& folder);
  void discard(Writer& writer);

 private:
  Result<void> flush(Writer& writer);
  std::string sidecar(const std::string& about);

  const std::shared_ptr<Store> store_;
  const RowLayout layout_;
  std::unique_ptr<PartialFile> file_;  // null before the first row
  std::unique_ptr<PartialFile> json_;  // null before finish()
  std::vector<std::byte> buffer_;
  std::vector<int32_t> positions_;
  Sha256 hash_;
};

}  // namespace rudder::steer::capture
