// A gated short convolution: B, C and x are projections of a token, and the mixer gives
// C * conv(B * x), with a causal filter of each channel. One of the mixers that a layer may have
// (spec.h). This file and its .cpp hold all that is particular to this kind of branch: its numbers,
// its tensors, its scratch memory, its state and its pass.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Mixed;
struct Operand;

struct ShortConv {
  int32_t width = 0;   // channels
  int32_t length = 0;  // of the filter
  bool bias = false;   // of the filter and of both projections

  // Of its tensors in a checkpoint, behind the layer's prefix.
  struct Names {
    std::string_view in = "conv.in_proj";  // B, C, x
    std::string_view filter = "conv.conv.weight";
    std::string_view filter_bias = "conv.conv.bias";
    std::string_view out = "conv.out_proj";
  };

  struct Weights {
    ops::LinearWeight in;
    ops::View filter;  // [width * length] f32
    ops::View bias;    // [width] f32
    ops::LinearWeight out;

    const ops::LinearWeight& input() const { return in; }
    const ops::LinearWeight& output() const { return out; }
  };
};

void list_tensors(const ShortConv& mixer, int64_t hidden, const ShortConv::Names& names,
                  ShortConv::Weights* weights, LayerTensors& out);

// The last inputs of the filter.
StateBytes state_bytes(const ShortConv& mixer);

// Of mix(), in elements a token: B, C and x; B * x; convolved.
std::array<int64_t, 3> scratch_widths(const ShortConv& mixer);

Mixed mix(const ShortConv& mixer, const ShortConv::Weights& weights, const Operand& in,
          const LayerStep& step);

}  // namespace rudder::model
