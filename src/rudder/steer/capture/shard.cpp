#include "rudder/steer/capture/shard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "rudder/base/clock.h"
#include "rudder/steer/capture/sha256.h"

namespace rudder::steer::capture {
namespace {

constexpr int64_t kMaxReserve = int64_t{1} << 30;
constexpr size_t kMaxOpen = 16;  // tags are the clients' choice

// Names of files sort by the start of the process that wrote them.
std::string file_prefix(int writer) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("shard-{:x}-{:x}-{:02}",
                     std::chrono::duration_cast<std::chrono::microseconds>(now).count(), ::getpid(),
                     writer);
}

}  // namespace

ShardSet::ShardSet(std::shared_ptr<Store> store, ShardBounds bounds, int writer)
    : store_(std::move(store)), bounds_(bounds), prefix_(file_prefix(writer)) {}

bool ShardSet::add(const std::string& tag, const std::shared_ptr<ShardClient>& client,
                   ShardBlock block) {
  const size_t bytes = block.rows.size() + block.positions.size() * sizeof(int32_t);
  const auto full = open_.find(tag);
  if (full != open_.end() &&
      full->second.data.size() + bytes > static_cast<size_t>(bounds_.max_bytes)) {
    publish(tag, full->second);
    open_.erase(full);
  }
  if (!open_.contains(tag) && open_.size() >= kMaxOpen) publish_oldest();
  Shard& shard = open_[tag];
  if (shard.tensors.empty()) {
    shard.due_us = SteadyClock().now_us() + bounds_.max_age_us;
    // Address space, not memory, until it is written to: growing would copy what is there.
    shard.data.reserve(static_cast<size_t>(std::min(bounds_.max_bytes, kMaxReserve)));
  }
  auto named =
      std::ranges::find_if(shard.clients, [&](const auto& c) { return c.second == client; });
  const bool is_new = named == shard.clients.end();
  if (is_new) {
    std::string name = client->slug();
    for (int i = 2; shard.clients.contains(name); ++i) {
      name = fmt::format("{}-{}", client->slug(), i);
    }
    shard.metadata.emplace_back(name, client->description());
    named = shard.clients.emplace(name, client).first;
  }
  const std::string name = fmt::format("{}/{}", named->first, block.key);
  const auto count = static_cast<uint64_t>(block.positions.size());
  shard.tensors.push_back(
      {name, block.dtype, weights::TensorShape::of({count, static_cast<uint64_t>(block.width)})});
  shard.tensors.push_back(
      {name + ".positions", tensor::DType::kI32, weights::TensorShape::of({count})});
  shard.data.insert(shard.data.end(), block.rows.begin(), block.rows.end());
  const auto positions = std::as_bytes(std::span(block.positions));
  shard.data.insert(shard.data.end(), positions.begin(), positions.end());
  return is_new;
}

void ShardSet::publish_oldest() {
  const auto oldest =
      std::ranges::min_element(open_, {}, [](const auto& shard) { return shard.second.due_us; });
  publish(oldest->first, oldest->second);
  open_.erase(oldest);
}

std::optional<int64_t> ShardSet::next_due_us() const {
  if (open_.empty()) return std::nullopt;
  return std::ranges::min_element(open_, {}, [](const auto& s) { return s.second.due_us; })
      ->second.due_us;
}

void ShardSet::publish_due(int64_t now_us) {
  for (auto shard = open_.begin(); shard != open_.end();) {
    if (shard->second.due_us > now_us) {
      ++shard;
      continue;
    }
    publish(shard->first, shard->second);
    shard = open_.erase(shard);
  }
}

void ShardSet::publish_all() {
  for (auto& [tag, shard] : open_) publish(tag, shard);
  open_.clear();
}

void ShardSet::publish(const std::string& tag, Shard& shard) {
  const Result<std::string> path = write(tag, shard);
  for (const auto& [name, client] : shard.clients) client->on_published(path);
}

Result<std::string> ShardSet::write(const std::string& tag, Shard& shard) {
  Sha256 hash;
  hash.update(shard.data);
  shard.metadata.emplace_back("format", "rudder.capture.shard.1");
  shard.metadata.emplace_back("data_sha256", hash.finish_hex());
  RUDDER_TRY(const std::vector<std::byte> header,
             weights::make_safetensors_header(shard.tensors, shard.metadata));
  const std::string name = fmt::format("{}-{:06}.safetensors", prefix_, next_file_++);
  RUDDER_TRY(const Folder folder, store_->tag_folder(tag));
  const std::unique_ptr<PartialFile> file = store_->new_file();
  RUDDER_TRY_VOID(file->open());
  RUDDER_TRY_VOID(file->append(header));
  RUDDER_TRY_VOID(file->append(shard.data));
  RUDDER_TRY_VOID(file->publish(folder, name));
  if (store_->is_durable()) RUDDER_TRY_VOID(folder.sync());
  return fmt::format("{}/{}", tag, name);
}

}  // namespace rudder::steer::capture
