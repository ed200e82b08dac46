// Writes trained vectors to files: safetensors that --steering-module loads, GGUF control vectors
// that llama.cpp and repeng load, and a card that describes how they were made. A file appears only
// when it is complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/train/directions.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

struct TrainedVector {
  tap::Point point;
  Direction direction;
  Projections train;    // of the rows that it was made from
  double row_norm = 0;  // mean length of those rows, for a sense of scale
  double train_accuracy = 0;
  double held_out_accuracy = 0;
};

// What scale 1 of the module is.
struct VectorUnit {
  double part = 1;       // of the whole vectors
  double kl_budget = 0;  // of which it is the largest part within, in nats a token; 0: not measured
  double kl = 0;
  double kl_error = 0;
};

struct VectorCard {
  std::string name;
  std::string model;
  Method method = Method::kMeanDifference;
  std::string site;
  std::string tokens;  // which rows: "last" or "mean"
  std::string positive_file;
  std::string negative_file;
  int64_t num_positive = 0;  // trained on
  int64_t num_negative = 0;
  int64_t num_held_out = 0;  // of both sets
  VectorUnit unit;
  std::vector<TrainedVector> vectors;  // by layer, whole
};

std::string card_json(const VectorCard& card);
std::string card_markdown(const VectorCard& card);

// Tensors "SITE.LAYER" [width] F32, the whole vectors; the card's JSON is the metadata
// "rudder.card", and the part of the vectors that scale 1 of the module adds is "rudder.unit".
Result<void> write_vectors_safetensors(const VectorCard& card, const std::string& path);

// "direction.N" [width] F32, in the module's unit, is added to the output of block N.
// kInvalidArgument for another site than resid_post; block 0 is left out, since those who read
// these files have no place for it.
Result<void> write_control_vector(const VectorCard& card, const std::string& path);

// The card of a file that write_vectors_safetensors wrote.
Result<VectorCard> read_vectors_safetensors(const std::string& path);

}  // namespace rudder::steer
