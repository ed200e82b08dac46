#include "rudder/exec/settings.h"

namespace rudder::exec {

void ExecSettings::declare(SettingsTable& table) {
  table.section("exec");
  table.add_choice("device", &device, {"auto", "cpu"}, "What runs the model.");
  table.add_choice("dtype", &dtype, {"auto", "float32", "bfloat16"},
                   "Precision of weights and products; auto takes the fastest the device has.");
  table.add("threads", &threads, 0, 4096,
            "Threads of the CPU backend; 0 takes every core this process may use.");
  table.add("max-model-len", &max_model_len, 0, INT32_MAX,
            "Longest sequence, prompt and output together; 0 takes the model's own length, or what "
            "the KV cache holds when that is less.");
  table.add("block-size", &block_size, 1, 256, "Tokens of a KV-cache block.");
  table.add_bytes("kv-cache-memory-bytes", &kv_cache_memory_bytes,
                  "Memory of the KV cache; 0 takes what --gpu-memory-utilization leaves.");
  table.add("gpu-memory-utilization", &gpu_memory_utilization, 0.01, 1.0,
            "Share of the device's available memory (of RAM on a CPU) that weights, workspace and "
            "KV cache may take together.");
  table.add("enforce-eager", &enforce_eager,
            "Run every step op by op, also on a device that could replay captured ones: starts "
            "sooner, decodes slower.");
}

}  // namespace rudder::exec
