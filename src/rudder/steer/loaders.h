// Loaders: read steering modules from files. They execute nothing from a file and open no pickle. A
// file that breaks its format is kCorruptFile, one that does not fit the model kInvalidArgument,
// both with the file and the tensor as `where`. Called by Library; any thread.
//
//   .safetensors, .npz   tensors "[prefill.|decode.]<site>.<layer>" with one row, or
//                        "[prefill.|decode.]<site>" with a row a layer and, where these are not all
//                        layers in order, an integer tensor "<the same>.layers" that lists them;
//                        also "direction.<layer>", as in GGUF
//   .gguf                control vectors of llama.cpp and repeng: general.architecture is
//                        "controlvector", "direction.N" is added to the output of block N
//   .json                the steering fields of a request
//
// Every tensor is an add, and every tensor must be one of these. What a safetensors file's metadata
// "rudder.unit" says, a number, is what scale 1 of the module is times the tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/config.h"
#include "rudder/steer/parse.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer {

inline constexpr const char* kUnitKey = "rudder.unit";

struct LoadedModule {
  std::vector<OpSpec> ops;
  std::string model_hint;
};

// The extension of the file's name decides the format.
Result<LoadedModule> load_module(const std::string& path, const Model& model, const Names& names);

// The same from bytes, for tests: `file` is its name in errors and decides the format.
Result<LoadedModule> load_module_bytes(std::span<const std::byte> bytes, const std::string& file,
                                       const Model& model, const Names& names);

}  // namespace rudder::steer
