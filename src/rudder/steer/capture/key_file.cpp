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
  if (json_ == nullptr) return;
  writer.fds().forget(*json_);
  json_.reset();
}

std::string KeyFile::sidecar(const std::string& about) {
  std::string residual = residual_json(layout_);
  if (!residual.empty()) residual += ',';
  return fmt::format(
      R"({{"format":"rudder.capture.rows.1",{},"layer":{},"site":"{}","point":"{}","dtype":"{}",)"
      R"("shape":[{},{}],{}"sha256":"{}","positions":[{}]}})"
      "\n",
      about, layout_.point.point.layer, tap::site_name(layout_.point.point.site),
      layout_.point.after ? "post" : "pre", dtype_spelling(layout_.dtype), positions_.size(),
      layout_.width, residual, hash_.finish_hex(), fmt::join(positions_, ","));
}

Result<void> KeyFile::finish(Writer& writer, const std::string& about) {
  if (file_ == nullptr) return {};
  RUDDER_TRY_VOID(flush(writer));
  file_->start_write_back();
  json_ = store_->new_file();
  RUDDER_TRY_VOID(writer.fds().open(*json_));
  const std::string text = sidecar(about);
  RUDDER_TRY_VOID(json_->append(std::as_bytes(std::span(text))));
  json_->start_write_back();
  return {};
}

Result<std::vector<std::string>> KeyFile::publish(Writer& writer, const Folder& folder) {
  std::vector<std::string> paths;
  if (file_ == nullptr) return paths;
  writer.count_keys(-1);
  const std::string stem =
      fmt::format("{}_{}", layout_.point.point.layer, tap::site_name(layout_.point.point.site));
  const std::unique_ptr<PartialFile> rows = std::move(file_);
  const std::unique_ptr<PartialFile> json = std::move(json_);
  const auto name = [&](PartialFile& file, const std::string& as) -> Result<void> {
    Result<void> opened = writer.fds().open(file);
    writer.fds().forget(file);
    if (!opened) return opened;
    RUDDER_TRY_VOID(file.publish(folder, as));
    paths.push_back(fmt::format("{}/{}", folder.path, as));
    return {};
  };
  Result<void> done = name(*rows, stem + ".bin");
  if (done) done = name(*json, stem + ".json");
  writer.fds().forget(*json);
  if (!done) return tl::unexpected<Error>(done.error());
  return paths;
}

}  // namespace rudder::steer::capture
