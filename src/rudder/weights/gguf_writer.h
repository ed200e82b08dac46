// Writes a GGUF file of version 3 (format: gguf.h): values of metadata and tensors are declared,
// then the tensors' bytes come in the order of declaration. Used by `rudder quantise`, on one
// thread. The file gets its name only in finish(); until then it is a temporary one in the same
// folder, which the destructor removes.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/weights/block_type.h"
#include "rudder/weights/gguf.h"

namespace rudder::weights {

class GgufWriter {
 public:
  GgufWriter() = default;
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, std::span<const std::string> texts);
  void add(std::string_view key, std::span<const int32_t> numbers);
  void add(std::string_view key, std::span<const float> numbers);

  // [rows, columns] of whole blocks; rows 0: a vector.
  void declare(std::string_view name, const BlockType& type, uint64_t rows, uint64_t columns);

  // Nothing is added or declared behind it.
  Result<void> begin(const std::string& path);
  // All bytes of the next tensor.
  Result<void> append(std::span<const std::byte> bytes);
  Result<void> finish();  // once, behind all tensors

 private:
  struct Declared {
    std::string info;  // up to its offset
    uint64_t bytes = 0;
  };
  void put_key(std::string_view key, GgufType type);
  void put_array(std::string_view key, GgufType type, uint64_t count);
  Result<void> pad();  // to where the next tensor begins
  Result<void> check_file() const;

  std::string values_;
  uint64_t num_values_ = 0;
  std::vector<Declared> tensors_;
  size_t next_ = 0;
  std::string path_;
  std::string temporary_;  // empty: there is none
  std::ofstream file_;
};

}  // namespace rudder::weights
