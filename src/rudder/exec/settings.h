// Settings of the executor: the backend, its precision and its memory. Names are vLLM's where they
// exist. Read by apps/ (device, dtype, threads: they pick the backend) and by make_executor.h (the
// rest).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rudder/base/settings.h"
#include "rudder/tensor/dtype.h"

namespace rudder::exec {

// What wide weights become while they are loaded, and where they lie.
struct QuantizationSettings {
  std::string products = "none";  // of the layers
  std::string head = "auto";
  std::string layer_embeddings = "device";  // or "host"
};

struct ExecSettings {
  std::string device = "auto";
  std::string dtype = "auto";
  QuantizationSettings quantization;
  std::string kv_cache_dtype = "auto";
  int32_t threads = 0;
  // How devices divide the model (docs/parallel.md).
  struct Parallel {
    int32_t ranks = 1;  // of each stage
    int32_t stages = 1;
    bool by_expert = false;  // whole experts on ranks, not slices of each
  } parallel;
  int32_t max_model_len = 0;
  int32_t block_size = 16;
  int64_t kv_cache_memory_bytes = 0;
  double gpu_memory_utilization = 0;  // 0: apps/ puts the device's own default here
  std::string cublaslt_path;
  std::string kernel_policy;
  bool tune = true;
  bool batch_invariant = false;
  bool synchronous = false;
  bool enforce_eager = false;
  bool enable_steering = false;
  int32_t max_steering_rows = 256;
  int64_t steering_memory_mb = 0;
  int64_t capture_memory_mb = 0;
  int64_t feature_memory_mb = 0;
  // From the settings of steering: whether requests may name dictionaries, and how their encoders
  // lie on the device; none: as activations.
  struct {
    bool any = false;
    std::optional<tensor::DType> dtype;
  } dictionaries;
  // Of models whose layers keep a state of each sequence (docs/contracts/cache.md).
  struct {
    double memory_fraction = 0.5;
    int32_t checkpoint_blocks = 0;
  } states;
  // Of cached prefixes behind the device.
  struct Tiers {
    double host_gib = 0;
    std::string disk_dir = {};
    double disk_gib = 0;
  } tiers;
  struct {
    bool enable = false;
    int32_t max_loras = 1;
    int32_t max_rank = 16;
  } lora;
  int64_t embedding_memory_mb = 0;  // no flag of every command: a server's alone

  void declare(SettingsTable& table);
};

}  // namespace rudder::exec
