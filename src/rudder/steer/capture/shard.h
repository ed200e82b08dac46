// Shards: safetensors files with rows of many requests, for collecting millions of activations. A
// shard grows in memory and is written as a whole when it is full or old.
//
// Tensors: "REQUEST/SITE.LAYER/BLOCK" [n, width] and "REQUEST/SITE.LAYER/BLOCK.positions" [n] I32;
// blocks of a key count from 0 within the request. Metadata: "format", "data_sha256" (of the data
// section), and for each request "REQUEST" -> JSON of what it was.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/capture/store.h"
#include "rudder/tensor/dtype.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::steer::capture {

struct ShardBounds {
  int64_t max_bytes = int64_t{64} << 20;
  int64_t max_age_us = 1'000'000;
};

// Whose rows are in a shard.
class ShardClient {
 public:
  virtual ~ShardClient() = default;
  virtual const std::string& slug() const = 0;  // the request's name
  virtual std::string description() const = 0;  // JSON
  // The shard with rows of it is on the disk, as the file at `path` below the root.
  virtual void on_published(const Result<std::string>& path) = 0;
};

// Rows of one key, positions ascending.
struct ShardBlock {
  std::string key;  // "resid_post.10/0"
  tensor::DType dtype = tensor::DType::kBF16;
  int32_t width = 0;
  std::vector<int32_t> positions;
  std::vector<std::byte> rows;
};

// The open shards of one writer, by tag. The writer's thread.
class ShardSet {
 public:
  ShardSet(std::shared_ptr<Store> store, ShardBounds bounds, int writer);

  // True when the block began a new shard for this client: on_published comes once more.
  bool add(const std::string& tag, const std::shared_ptr<ShardClient>& client, ShardBlock block);
  std::optional<int64_t> next_due_us() const;  // of the steady clock
  void publish_due(int64_t now_us);
  void publish_all();

 private:
  struct Shard {
    std::vector<weights::TensorDecl> tensors;
    std::vector<std::byte> data;
    weights::Metadata metadata;
    std::map<std::string, std::shared_ptr<ShardClient>> clients;  // by name in the shard
    int64_t due_us = 0;
  };

  Result<std::string> write(const std::string& tag, Shard& shard);
  void publish(const std::string& tag, Shard& shard);
  void publish_oldest();

  const std::shared_ptr<Store> store_;
  const ShardBounds bounds_;
  const std::string prefix_;  // of file names: of this writer of this process
  uint64_t next_file_ = 0;
  std::map<std::string, Shard> open_;
};

}  // namespace rudder::steer::capture
