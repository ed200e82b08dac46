// PjrtOps: the ops beside the forward pass, which modules run (module_decoder.h): the state of
// slots and the choice of tokens, on the host as the CPU backend has them, and taps. Weights that
// products read go to the plugin's device; embeddings, norms and tables stay on the host until the
// decoder takes them. What modules do not do is absent here (facets.h), so that whoever asks for it
// is refused by name. Made by apps; owned and used as any backend.
#pragma once

#include <memory>
#include <string>

#include "rudder/cpu/host_ops.h"
#include "rudder/model/spec.h"
#include "rudder/pjrt/plugin.h"

namespace rudder::pjrt {

// A weight on the device, row-major.
struct DeviceWeight final : ops::PackedWeight {
  Buffer weight;  // [out, in] of the ops' numbers
  Buffer bias;    // [out] f32, or empty
};

struct PjrtSettings {
  std::string plugin;                          // the path of its library
  tensor::DType dtype = tensor::DType::kBF16;  // of weights, KV and products; kBF16 or kF32
  bool int8_kv = false;                        // ops::kInt8TokenKv
  int num_threads = 0;  // that choose tokens; 0 = every core this process may use
};

class PjrtOps final : public cpu::HostOps {
 public:
  // An Error is Client::open()'s.
  static Result<std::unique_ptr<PjrtOps>> make(const PjrtSettings& settings);

  const Client& client() const { return *client_; }
  tensor::DType numbers() const { return settings_.dtype; }
  // Keeps the first fault of the device: events recorded from now on tell it.
  void fault(const Result<void>& outcome) { note(outcome); }

  std::string name() const override { return "pjrt-" + client_->platform(); }
  bool is_host() const override { return false; }
  int64_t available_memory() const override;
  // Rows that taps see are f32.
  tensor::DType act_dtype() const override { return tensor::DType::kF32; }
  ops::KvFormat kv_format() const override { return kv_format_; }
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override;
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override;

  ops::TreeOps* tree_ops() override { return nullptr; }
  ops::PatternOps* pattern_ops() override { return nullptr; }

  void sample(const ops::SampleArgs& args) override;
  void score(const ops::ScoreArgs& args) override;
  void encode(const ops::EncodeArgs& args) override;
  void read_features(const ops::ReadFeaturesArgs& args) override;

  // Of the forward pass: nobody calls them.
  void embed(const ops::EmbedArgs& args) override;
  void residual_norm(const ops::ResidualNormArgs& args) override;
  void linear(const ops::LinearArgs& args) override;
  void qkv_prep(const ops::QkvPrepArgs& args) override;
  void attention(const ops::AttentionArgs& args) override;
  void gated_act(const ops::GatedActArgs& args) override;
  void logits(const ops::LogitsArgs& args) override;
  void keep_paths(const ops::KeepPathsArgs& args) override;
  void patterns(const ops::PatternArgs& args) override;
  void tap_shares(const ops::TapSharesArgs& args) override;

 private:
  explicit PjrtOps(PjrtSettings settings);

  const PjrtSettings settings_;
  const ops::KvFormat kv_format_;
  std::unique_ptr<Client> client_;
  ThreadPool pool_;
};

}  // namespace rudder::pjrt
