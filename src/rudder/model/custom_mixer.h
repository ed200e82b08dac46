// A mixer that another room brings, behind an interface: what alternatives of this room have as
// functions (branch.h), it has as virtual ones. No config.json names one; testing/ has a toy with a
// recurrent state. Immutable; specs share it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"
#include "rudder/ops/comm.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Mixed;
struct Operand;

class MixerKind;

struct CustomMixer {
  std::shared_ptr<const MixerKind> kind;

  struct Names {};  // the kind's own

  struct Weights {
    ops::View vector;  // f32
    ops::LinearWeight in;
    ops::LinearWeight out;

    const ops::LinearWeight& input() const { return in; }
    const ops::LinearWeight& output() const { return out; }
  };
};

class MixerKind {
 public:
  virtual ~MixerKind() = default;

  // The part of a rank; an Error: it cannot be divided so.
  virtual Result<std::shared_ptr<const MixerKind>> share(ops::Rank rank) const = 0;
  virtual void list_tensors(int64_t hidden, CustomMixer::Weights* weights,
                            LayerTensors& out) const = 0;
  virtual std::vector<int64_t> scratch_widths() const = 0;
  virtual StateBytes state_bytes() const = 0;
  virtual bool reads_act() const { return false; }  // branch.h
  virtual Mixed mix(const CustomMixer::Weights& weights, const Operand& in,
                    const LayerStep& step) const = 0;
};

inline void list_tensors(const CustomMixer& mixer, int64_t hidden, const CustomMixer::Names&,
                         CustomMixer::Weights* weights, LayerTensors& out) {
  mixer.kind->list_tensors(hidden, weights, out);
}
inline std::vector<int64_t> scratch_widths(const CustomMixer& mixer) {
  return mixer.kind->scratch_widths();
}
inline StateBytes state_bytes(const CustomMixer& mixer) {
  return mixer.kind->state_bytes();
}
inline bool reads_act(const CustomMixer& mixer) {
  return mixer.kind->reads_act();
}
// Where Mixed is complete.
template <typename Step>
auto mix(const CustomMixer& mixer, const CustomMixer::Weights& weights, const Operand& in,
         const Step& step) {
  return mixer.kind->mix(weights, in, step);
}

}  // namespace rudder::model
