#include "rudder/exec/settings.h"

namespace rudder::exec {

namespace {

void declare_tiers(SettingsTable& table, ExecSettings::Tiers& tiers) {
  constexpr double kMostGib = 1 << 20;
  table.add("kv-host-gib", &tiers.host_gib, 0.0, kMostGib,
            "Host memory, in GiB, for cached prefixes that the KV cache has no room for; 0: none "
            "(docs/tiers.md).");
  table.add("kv-offloading-size", &tiers.host_gib, 0.0, kMostGib, "vLLM's name of --kv-host-gib.");
  table.add("kv-disk-dir", &tiers.disk_dir,
            "Folder of files for cached prefixes behind --kv-host-gib; they are found again after "
            "a restart with the same model. One process at a time has it.");
  table.add("kv-disk-gib", &tiers.disk_gib, 0.0, kMostGib, "Bytes of --kv-disk-dir, in GiB.");
}

}  // namespace

void ExecSettings::declare(SettingsTable& table) {
  table.section("exec");
  table.add_choice(
      "device", &device, {"auto", "cpu", "cuda", "pjrt:PATH"},
      "What runs the model; auto takes a GPU that this build has kernels for, else the "
      "CPU. pjrt: the XLA compiler of a PJRT plugin, whose library lies at the path "
      "(docs/pjrt.md).");
  table.add_choice("dtype", &dtype, {"auto", "float32", "bfloat16"},
                   "Precision of weights and products; auto takes the fastest the device has.");
  table.add_choice(
      "quantization", &quantization.products, {"none", "fp8", "w8a8", "w4a16"},
      "Wide weights, rounded while the model is loaded; on a GPU. fp8: they and what "
      "they multiply as E4M3; w8a8: as whole numbers of 8 bits with a scale a row, what "
      "they multiply too with more than 32 tokens; w4a16: codes of 4 bits in groups of "
      "128 inputs, to nearest. What a checkpoint has quantised stays as it is.");
  table.add_choice("head-format", &quantization.head, {"auto", "bf16", "fp8"},
                   "Of the output head, and of the embedding table where the two are tied, with "
                   "--quantization; on a GPU. auto is bf16, as peers keep it: fp8 reads half as "
                   "many bytes and costs as much accuracy as all the other products together.");
  table.add_choice("kv-cache-dtype", &kv_cache_dtype,
                   {"auto", "fp8", "fp8_per_token_head", "int8_per_token_head"},
                   "Of the KV cache; auto is the dtype of the activations' products. The others "
                   "take half the bytes of bf16: fp8 by the checkpoint's scales of each layer and "
                   "head, or as it is where there are none; fp8_per_token_head and "
                   "int8_per_token_head by a scale of each token and head, made as it is written.");
  table.add("threads", &threads, 0, 4096,
            "Threads of the CPU backend; 0 takes every core this process may use.");
  table.add("tensor-parallel-size", &parallel.ranks, 1, 64,
            "Ranks that compute the model together, each with a share of every layer "
            "(docs/parallel.md); on a CPU they share its threads and memory.");
  table.add(
      "pipeline-parallel-size", &parallel.stages, 1, 64,
      "Stages that the layers are divided among, each on a rank that runs the next step while "
      "later stages run this one (docs/parallel.md); on a CPU they share its threads and "
      "memory.");
  table.add("enable-expert-parallel", &parallel.by_expert,
            "The ranks of --tensor-parallel-size divide the experts of a mixture among them, not "
            "the neurons of each expert (docs/parallel.md); on a CPU.");
  table.add("max-model-len", &max_model_len, 0, INT32_MAX,
            "Longest sequence, prompt and output together; 0 takes the model's own length, or what "
            "the KV cache holds when that is less.");
  table.add("block-size", &block_size, 1, 256, "Tokens of a KV-cache block.");
  table.add_bytes("kv-cache-memory-bytes", &kv_cache_memory_bytes,
                  "Memory of the KV cache, of each rank; 0 takes what --gpu-memory-utilization "
                  "leaves.");
  table.add("gpu-memory-utilization", &gpu_memory_utilization, 0.0, 1.0,
            "Share of the device's available memory (of RAM on a CPU) that weights, workspace and "
            "KV cache may take together; 0 takes 0.9 of a GPU's, 0.5 of RAM.");
  table.add_choice("layer-embeddings", &quantization.layer_embeddings, {"device", "host"},
                   "Where the table of embeddings by layer lies, which some models have (Gemma 4 "
                   "E2B and E4B): on the device, or in memory of the host, from which the device "
                   "reads the rows of a step's tokens.");
  table.add("state-memory-fraction", &states.memory_fraction, 0.0, 1.0,
            "Share of the KV cache's memory that states of sequences and their checkpoints take, "
            "where layers of the model keep such (recurrent ones); others have none.");
  table.add(
      "state-checkpoint-blocks", &states.checkpoint_blocks, 0, INT32_MAX,
      "KV-cache blocks of a sequence from one checkpoint of its state to the next, from which "
      "others with the same prefix go on; 0: as many as take the bytes of one. At ends of prompts "
      "and turns there are some anyway.");
  declare_tiers(table, tiers);
  table.add("cublaslt-path", &cublaslt_path,
            "cuBLASLt's library or its folder; empty looks where the CUDA toolkit and NVIDIA's "
            "Python packages put it.");
  table.add("kernel-policy", &kernel_policy,
            "File that keeps which GPU kernel was fastest for which shape; empty is "
            "kernel-policy.json in the user's cache folder.");
  table.add("tune", &tune, "Measure the GPU's kernels for shapes that the policy does not know.");
  table.add("batch-invariant", &batch_invariant,
            "On a GPU: a request gets the same tokens, bit for bit, whatever runs beside it and "
            "however its prompt is cut. Slower; a CPU always does.");
  table.add(
      "synchronous", &synchronous,
      "Wait for the GPU after every operation, so that a fault names the one it was in. Slow.");
  table.add("enforce-eager", &enforce_eager,
            "Run every step op by op, also on a device that could replay captured ones: starts "
            "sooner, decodes slower.");
  table.add("enable-steering", &enable_steering,
            "Keep a table of steering programs on the device; without it requests that ask for "
            "steering are refused.");
  table.add("max-steering-rows", &max_steering_rows, 1, 65535,
            "Different steering programs that can be on the device at once; requests with the same "
            "share one.");
  table.add("steering-memory-mb", &steering_memory_mb, 0, 1 << 20,
            "MiB on the device for the vectors of these programs; 0 takes room for two vectors a "
            "layer and program, at most 256.");
  table.add("capture-memory-mb", &capture_memory_mb, 0, 1 << 20,
            "MiB on the device for the activations that steps in flight capture; 0: nothing is "
            "captured. Four times as much is kept on the host.");
  table.add("feature-memory-mb", &feature_memory_mb, 0, 1 << 20,
            "MiB on a GPU for the encoders of dictionaries whose features captured rows are read "
            "as; 0 takes 256. None without a dictionary or a root for them, or without capture.");
  table.add("enable-lora", &lora.enable,
            "Keep a table of LoRA adapters on the device, which requests name as their model "
            "(docs/adapters.md).");
  table.add("max-loras", &lora.max_loras, 1, 4096,
            "Adapters that requests can run with at once; there is room for one more, so that a "
            "new version comes in while the old one runs.");
  table.add("max-lora-rank", &lora.max_rank, 1, 512,
            "The highest rank of an adapter; the table has memory for that of each.");
}

}  // namespace rudder::exec
