// AttentionLayers: chooses the attention kernel of each layer, and keeps what each kernel needs
// beside its tensors: a work list and a workspace for every kind of layer, a tensor map for every
// layer's cache. A shape that no tuned kernel takes is an Error, unless a test asks for the plain
// kernel. CudaOps owns it; its thread uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/kernels/attention/attention.h"
#include "rudder/cuda/kernels/latents/latent_attention.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

class AttentionLayers {
 public:
  struct Settings {
    // AttentionConfig::whole_sequences; the plain kernel is so anyway, a block a token and head
    // that takes the keys in their order.
    bool batch_invariant = false;
    bool plain = false;              // for shapes that no tuned kernel takes
    int32_t least_sparse_pages = 0;  // GateParams; 0: what was measured
  };
  // `memory` outlives it.
  AttentionLayers(DeviceMemory& memory, cudaStream_t stream, int32_t num_sms, Settings settings)
      : memory_(memory), stream_(stream), num_sms_(num_sms), settings_(settings) {}

  // Makes room for steps of up to so many sequences and tokens. An Error: a shape that no kernel
  // takes, or no memory.
  Result<void> prepare(std::span<const ops::AttentionShape> shapes, int32_t max_seqs,
                       int32_t max_tokens);

  // Tokens before a window that are read beside it.
  int32_t lookback() const { return settings_.batch_invariant ? kMaxTileTokens : 0; }

  // The step's batch; work lists are made when a layer first asks for them.
  void begin_step(const ops::AttentionBatch& batch);
  Result<void> attend(const ops::AttentionArgs& args);
  const ops::AttentionBatch& batch() const { return batch_; }

 private:
  // What layers have in common that share a work.
  struct Kind {
    int32_t num_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t block_size = 0;
    int32_t window = 0;
    KvType kv_type = KvType::kBf16;
    int32_t parts = 2;
    int32_t value_dim = 0;

    bool operator<(const Kind& other) const {
      const auto fields = [](const Kind& k) {
        return std::tie(k.num_heads, k.num_kv_heads, k.head_dim, k.block_size, k.window, k.kv_type,
                        k.parts, k.value_dim);
      };
      return fields(*this) < fields(other);
    }
    std::string to_string() const;
    bool is_latent() const { return parts == 1; }
  };
  struct WorkList {
    AttentionWorkspace workspace;
    bool is_current = false;  // of this step
  };

  // An Error: no kernel takes it.
  Result<void> check(const Kind& kind, bool has_gate) const;
  static Kind kind_of(const ops::KvLayer& kv, int32_t num_heads, int32_t window, int32_t value_dim);
  static bool is_tuned(const Kind& kind, bool has_gate);  // the tuned kernels take it
  AttentionConfig config_of(const Kind& kind) const;
  LatentAttentionConfig latent_config_of(const Kind& kind) const;
  Result<void> make_room(const Kind& kind, int32_t max_seqs, int32_t max_tokens);
  Result<const KvTensorMap*> tensor_map(const ops::KvLayer& kv, const Kind& kind);
  Result<void> attend_tuned(const ops::AttentionArgs& args, const Kind& kind);
  Result<void> attend_latent(const ops::AttentionArgs& args, const Kind& kind);
  Result<void> attend_plain(const ops::AttentionArgs& args, const Kind& kind);

  // Where results must not depend on company, tiles of keys begin at multiples of their size: 128
  // tokens in kernels/attention/attention_wgmma.cu, fewer in the others.
  static constexpr int32_t kMaxTileTokens = 128;

  DeviceMemory& memory_;
  const cudaStream_t stream_;
  const int32_t num_sms_;
  const Settings settings_;
  ops::AttentionBatch batch_;
  std::map<Kind, WorkList> work_lists_;
  // By the cache's address, which layers of several groups may share (ADR 0019), and their kind.
  std::map<std::pair<const void*, Kind>, KvTensorMap> maps_;
};

}  // namespace rudder::cuda
