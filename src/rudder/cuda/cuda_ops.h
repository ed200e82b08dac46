// The CUDA backend: activations bf16, weights bf16 or fp8, one GPU of compute capability 9.0. apps
// makes it at start; one thread uses it. Its memory is freed with it.
//
// It quantises weights to fp8 while they are loaded, with one scale for each channel of the output.
// Weights that a checkpoint stores as fp8 keep their bytes and scales, for any linear_dtype. The op
// in front of a product quantises the product's input token by token (LinearWeight::input).
//
// In batch-invariant mode the bits of a row depend neither on the other rows of a call, nor on the
// row's index among them, nor on how a sequence is cut into steps. The mode fixes the following, at
// a cost:
// - Products: the order of a sum depends on the shape of the weight alone: kernels of our own take
//   it, the ring up to 64 tokens and tiles above, whichever cut of theirs was fastest. Rows that
//   are no whole pieces of 16 bytes are multiplied by one kernel of the library for any number of
//   tokens, without split sums; it is not measured, but checked on batches of many sizes when the
//   model is loaded. Without the mode each number of tokens has the kernel that was fastest.
// - Rounding: where a step may be cut inside an op (StepBounds.cuts_ops), every step rounds to bf16
//   what the cut one stores; fp8 products are scaled by a kernel of their own.
// - Attention: one kernel for prompts and decodes, whose tiles of keys begin at multiples of their
//   size; a token of a tree of drafts is a decode behind its path. Without the mode decodes are
//   split so that they fill the device.
// - Recurrences: every token is walked. Without the mode runs of 64 tokens and more go by chunks.
// All other ops (norms, rope, quantisation, activations, sampling) work on a row or a
// token at a time, in an order that depends on its width alone, in either mode.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"

namespace rudder::cuda {

class KernelPolicy;

struct CudaOpsSettings {
  int32_t device = 0;  // which of the visible ones; make_cuda_ranks and make_cuda_stages say theirs
  tensor::DType linear_dtype = tensor::DType::kBF16;  // or kF8E4M3: quantised as they are loaded
  tensor::DType head_dtype = tensor::DType::kBF16;    // of the output head, likewise
  ops::WeightFormat low_format = {};  // of U4 or I8: wide weights but the head's are rounded to it
  ops::KvFormat kv = {tensor::DType::kBF16};  // or codes
  // A file or a folder; empty: cublaslt_api.h says where it is looked for.
  std::string cublaslt_path = {};
  std::string policy_path = {};  // of what was measured (kernel_policy.h); empty: it is not kept
  bool tune = true;              // measure the products of a model when it is loaded
  // Of a reader, which measures nothing: what the ops that made it have measured (Linear::policy).
  std::shared_ptr<KernelPolicy> policy = nullptr;
  bool batch_invariant = false;  // see above
  // Tests of tiny models: attention of shapes that no tuned kernel takes runs on a plain, slow one
  // instead of being refused.
  bool plain_attention = false;
  // GateParams::least_sparse_pages, for tests of short sequences; 0: what was measured.
  int32_t least_sparse_pages = 0;
  bool synchronous = false;  // wait after each op, so that a fault names its op; not in a capture
};

// Of the visible devices, from the first, those that this build has kernels for, up to one that it
// has none for. Needs no driver to be there.
int32_t num_cuda_devices();

// Called before the process uses CUDA where ranks or stages will: all kernels are loaded with a
// device, and none at its first launch, which might wait for the device while the device waits for
// another rank.
void load_kernels_early();

// On `settings.device`. An Error: no such device, no cuBLASLt, a dtype that is none of the above.
Result<std::unique_ptr<ops::Ops>> make_cuda_ops(const CudaOpsSettings& settings);

// The ranks of a group (peer_comm.h), one on each of `devices`. kUnsupported as PeerComm's. The
// thread that makes them may be another than those that use them. `patience_ms`: PeerComm.
Result<std::vector<std::unique_ptr<ops::Ops>>> make_cuda_ranks(const CudaOpsSettings& settings,
                                                               std::span<const int32_t> devices,
                                                               int32_t patience_ms = 2000);

// The devices of the stages of a pipeline, one on each of `devices`: each reads what another posts
// (Ops::post) and tells its progress. With `num_ranks` above 1 every stage is a group of so many
// ranks: the first `num_ranks` devices are the first stage. kUnsupported: a GPU that is there twice
// or not at all, or two without peer access ("pipeline-parallel-size"); PeerComm's.
Result<std::vector<std::unique_ptr<ops::Ops>>> make_cuda_stages(const CudaOpsSettings& settings,
                                                                std::span<const int32_t> devices,
                                                                int32_t num_ranks = 1);

}  // namespace rudder::cuda
