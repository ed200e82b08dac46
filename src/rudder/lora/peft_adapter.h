// Reads a LoRA adapter as Hugging Face peft writes it: adapter_config.json and
// adapter_model.safetensors. Reading is strict: every tensor is one of a pair of a product of the
// model, in its shape and with finite values, or the adapter is refused. Pure functions; any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/lora/adapter.h"
#include "rudder/lora/base_tensors.h"

namespace rudder::lora {

struct ReadLimits {
  int32_t max_rank = 16;
  std::array<uint64_t, 2> hash_secret = {};  // of keys
};

// What became of the files: for people.
struct Report {
  std::vector<std::string> matched;  // modules that the adapter changes
  std::vector<std::string> ignored;  // keys of the config that say nothing about serving
  std::string to_text() const;       // a line
};

struct ReadAdapter {
  std::shared_ptr<const Adapter> adapter;
  Report report;
};

// A file as it was read, and its name in errors.
struct AdapterFile {
  std::span<const std::byte> bytes;
  std::string name;
};

// Errors name the file and the key or tensor: kCorruptFile, kUnsupported, and kInvalidArgument for
// a rank above that of the limits. One names every tensor that is of no product.
// `base`: of a DoRA adapter; without it one is refused.
Result<ReadAdapter> read_peft(const AdapterFile& config, const AdapterFile& tensors,
                              const Targets& targets, const ReadLimits& limits,
                              const BaseReader& base = {});

// Of a folder; kNotFound, "No adapter found for FOLDER", where there is none. The files are read,
// not mapped: who writes them again changes no adapter that is loaded.
Result<ReadAdapter> read_peft_folder(const std::string& folder, const Targets& targets,
                                     const ReadLimits& limits, const BaseReader& base = {});

}  // namespace rudder::lora
