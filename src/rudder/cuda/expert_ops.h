// ExpertOps: mixtures of experts on the device (kernels/experts/). A weight of all experts is one
// CudaWeight, whose rows are those of one expert behind the other. CudaOps owns the one object, and
// runs its launches as it does its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/kernels/experts/expert_list.h"
#include "rudder/cuda/kernels/experts/route.h"
#include "rudder/cuda/uploader.h"
#include "rudder/ops/ops.h"

namespace rudder::cuda {

class ExpertOps final : public ops::ExpertOps, public ops::RouterTapOps {
 public:
  using Launcher = std::function<cudaError_t(cudaStream_t)>;
  using Run = std::function<void(const char* op, std::initializer_list<const ops::View*> views,
                                 const Launcher& launcher)>;
  struct Settings {
    int32_t num_sms = 132;
    bool batch_invariant = false;  // products take sums in one order for any number of rows
    ops::WeightFormat low = {};    // of U4 or I8: wide weights are rounded to it
  };
  // `backend` makes a weight of all experts' parts, and multiplies routers. All outlive it.
  ExpertOps(ops::Ops& backend, DeviceMemory& memory, Uploader& uploader, cudaStream_t stream,
            Run run, const Settings& settings)
      : backend_(backend),
        memory_(memory),
        uploader_(uploader),
        stream_(stream),
        run_(std::move(run)),
        settings_(settings) {}

  // Wide parts, E4M3 with a scale a row, E2M1 with a power of two for 32 inputs (MXFP4), which
  // stay codes, and what becomes LowBits (low_weight.h). kUnsupported, "quantization": weights of
  // other formats; "experts": rows or experts that the kernels do not take.
  Result<ops::LinearWeight> make_experts(std::span<const ops::LinearPart> parts,
                                         int64_t experts) override;
  void route(const ops::RouteArgs& args) override;
  ops::RouterTapOps* router_taps() override { return this; }
  void route_tapped(const ops::RouteTappedArgs& args) override;
  void expert_linear(const ops::ExpertLinearArgs& args) override;
  void combine_experts(const ops::CombineExpertsArgs& args) override;
  // Of one token, without Settings::batch_invariant, in all forms but LowBits
  // (kernels/experts/open_experts.h).
  bool open_experts(const ops::OpenExpertsArgs& args) override;
  bool close_experts(const ops::CloseExpertsArgs& args) override;

  // Room for the lists of every step. kUnsupported, "experts": more of them are chosen than the
  // kernels take.
  Result<void> prepare(const ops::StepBounds& bounds);

  // How many experts steps have hit, by tokens, for people; waits for the device.
  std::string hits_text() const;

 private:
  // What route() wrote last, and its list is of; else a list is made for the product at hand.
  struct Listed {
    const void* chosen = nullptr;
    int64_t tokens = 0;
    int64_t experts = 0;
    bool is_old = false;  // an op has run behind route()
  };

  enum class Stored : uint8_t { kWide, kCodes, kLow };
  Stored stored_as(const ops::WeightFormat& file) const;
  // The weight of parts in MXFP4; of those that become LowBits.
  Result<ops::LinearWeight> make_codes(std::span<const ops::LinearPart> parts, int64_t experts);
  Result<ops::LinearWeight> make_low(std::span<const ops::LinearPart> parts, int64_t experts);
  Result<void> reserve(int64_t pairs, int64_t experts);
  ExpertList list_of(int64_t tokens, int64_t chosen, int64_t experts) const;

  // Makes the logits, and chooses unless a launch behind it does.
  void run_router(const ops::RouteArgs& args, RouteParams& params, bool chooses);
  RouteParams route_params(const ops::RouteArgs& args) const;

  ops::Ops& backend_;
  DeviceMemory& memory_;
  Uploader& uploader_;
  const cudaStream_t stream_;
  const Run run_;
  const Settings settings_;
  ExpertList room_;
  int64_t room_pairs_ = 0;
  int64_t room_experts_ = 0;
  Listed listed_;
};

}  // namespace rudder::cuda
