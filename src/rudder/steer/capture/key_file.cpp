#include "rudder/steer/capture/key_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace rudder::steer::capture {
Result<void> KeyFile::append(Writer& writer, int32_t position, std::span<const std::byte> row) {
  if (file_ == nullptr) {
    file_ = store_->new_file();
    writer.count_keys(1);
  }
  buffer_.insert(buffer_.end(), row.begin(), row.end());
  positions_.push_back(position);
  return buffer_.size() >= writer.buffer_bytes() ? flush(writer) : Result<void>();
}

Result<void> KeyFile::flush(Writer& writer) {
  RUDDER_TRY_VOID(writer.fds().open(*file_));
  hash_.update(buffer_);
  RUDDER_TRY_VOID(file_->append(buffer_));
  buffer_.clear();
  return {};
}

void KeyFile::discard(Writer& writer) {
  if (file_ == nullptr) return;
  writer.fds().forget(*file_);
  writer.count_keys(-1);
  file_.reset();
  buffer_ = {};
}

std::string KeyFile::sidecar(const std::string& about) {
  return fmt::format(
      R"({{"format":"rudder.capture.rows.1",{},"layer":{},"site":"{}","point":"{}","dtype":"{}",)"
      R"("shape":[{},{}],"sha256":"{}","positions":[{}]}})"
      "\n",
      about, place_.point.point.layer, tap::site_name(place_.point.point.site),
      place_.point.after ? "post" : "pre", dtype_spelling(dtype_), positions_.size(), place_.width,
      hash_.finish_hex(), fmt::join(positions_, ","));
}

Result<std::vector<std::string>> KeyFile::publish(Writer& writer, const Folder& folder,
                                                  const std::string& about) {
  if (file_ == nullptr) return std::vector<std::string>();
  const Result<void> flushed = flush(writer);
  const std::unique_ptr<PartialFile> file = std::move(file_);
  writer.fds().forget(*file);
  writer.count_keys(-1);
  if (!flushed) return tl::unexpected<Error>(flushed.error());
  const std::string stem =
      fmt::format("{}_{}", place_.point.point.layer, tap::site_name(place_.point.point.site));
  RUDDER_TRY_VOID(file->publish(folder, stem + ".bin"));
  const std::unique_ptr<PartialFile> json = store_->new_file();
  RUDDER_TRY_VOID(json->open());
  const std::string text = sidecar(about);
  RUDDER_TRY_VOID(json->append(std::as_bytes(std::span(text))));
  RUDDER_TRY_VOID(json->publish(folder, stem + ".json"));
  return std::vector<std::string>{fmt::format("{}/{}.bin", folder.path, stem),
                                  fmt::format("{}/{}.json", folder.path, stem)};
}

}  // namespace rudder::steer::capture
