// ModuleDecoder: the forward pass of a step, by compiled modules. It cuts a step into passes (
// model_text.h): its single tokens together, in as many rows as a bucket has, and each longer
// sequence in chunks. A pass is one run of one module, or, where the step has taps, one run of a
// layer after the other: what a point passes goes to the host, where the taps of the CPU backend
// read and change it, and back. Logits come to the host, where PjrtOps samples.
//
// It keeps the KV, in the blocks of the caller's tables; modules are given it and give it back in
// the same memory. A module is compiled when a step first needs it, so what short contexts need may
// be compiled before. Made and used as any decoder, over PjrtOps. A fault of the device is kept
// there (PjrtOps::fault), and the logits of that step mean nothing.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/model/own_kv_decoder.h"

namespace rudder::pjrt {

struct ModuleSettings {
  std::string cache_folder;        // of compiled modules; empty: none is kept
  bool compiles_at_start = false;  // what steps without taps over short contexts need
};

// `parts.ops` are PjrtOps. An Error: the model is none that modules run (check_spec), or the
// device's.
Result<std::unique_ptr<model::Decoder>> make_module_decoder(const model::OwnKvDecoderParts& parts,
                                                            const ModuleSettings& settings);

}  // namespace rudder::pjrt
