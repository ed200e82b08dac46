// Embeddings by layer: besides the row that begins the residual, a token has a row for each layer,
// of its id and of that row. Each layer adds what it makes of its own behind its MLP. This file and
// its .cpp hold all that is particular to it: its numbers, its tensors, its memory and its pass.
//   e = (norm(x0 projection / sqrt(hidden)) + sqrt(width) * table[id]) / sqrt(2)
//   x = x + post_norm(out(act(gate(x)) * e_layer))
// x0: the embedding as it begins the residual, without taps. Source: transformers,
// Gemma4TextModel.project_per_layer_inputs and Gemma4TextDecoderLayer.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/ops/args.h"

namespace rudder::ops {
class Ops;
}

namespace rudder::model {

struct DecoderBuffers;  // decoder_buffers.h
struct LayerTensors;    // tensors.h
struct Operand;         // branch.h
class Products;

struct LayerEmbedding {
  int32_t width = 0;   // of a layer's row; 0: the model has none
  int32_t layers = 0;  // of the model
  int32_t vocab = 0;   // rows of the table
  ops::Activation activation = ops::Activation::kGeluTanh;
  bool on_host = false;  // the table lies in memory of the host, where the device reads its rows

  bool exists() const { return width > 0; }
  int64_t row_width() const { return int64_t{layers} * width; }  // of a token

  // The first three are of the model, the others of a layer.
  struct Names {
    std::string_view table = "embed_tokens_per_layer.weight";
    std::string_view projection = "per_layer_model_projection";
    std::string_view norm = "per_layer_projection_norm";
    std::string_view gate = "per_layer_input_gate";
    std::string_view out = "per_layer_projection";
    std::string_view post_norm = "post_per_layer_input_norm";
  };

  struct ModelWeights {
    ops::View table;  // [vocab, layers * width]
    ops::LinearWeight projection;
    ops::NormSpec norm;  // of the `width` columns of each layer
  };
  struct Weights {  // of a layer
    ops::LinearWeight gate;
    ops::LinearWeight out;
    ops::NormSpec post_norm;
  };
};

// Append their tensors, all of which each rank has whole; `weights` is where they are loaded to,
// null for their description alone. Of none nothing is appended.
void list_tensors(const LayerEmbedding& embedding, int64_t hidden,
                  const LayerEmbedding::Names& names, LayerEmbedding::ModelWeights* weights,
                  LayerTensors& out);
void list_tensors(const LayerEmbedding& embedding, int64_t hidden,
                  const LayerEmbedding::Names& names, LayerEmbedding::Weights* weights,
                  LayerTensors& out);

// Of LayerRows::read, in elements a token: the gate, the layer's row, both, activated.
std::array<int64_t, 4> scratch_widths(const LayerEmbedding& embedding);

// The rows of a step's tokens. The decoder owns it; all parts outlive it.
class LayerRows {
 public:
  LayerRows(const LayerEmbedding& embedding, const LayerEmbedding::ModelWeights& weights,
            ops::Ops& ops, const Products& products, const DecoderBuffers& buffers,
            int32_t max_tokens)
      : embedding_(embedding),
        weights_(weights),
        ops_(ops),
        products_(products),
        buffers_(buffers),
        max_tokens_(max_tokens) {}

  // Makes them of `x` [T, hidden] act and `ids` [T] i32.
  void begin(const ops::View& x, const ops::View& ids);
  // From now on of all `tokens` for which begin() made them. A step's two halves may be recorded
  // apart, so the second says which rows it reads.
  void resume(int64_t tokens);
  // From now on of the tokens `rows` [R] i32 alone.
  void keep(const ops::View& rows);
  // What layer `layer` adds, before its norm: [T, hidden] in the buffer `out`. `in` is the residual
  // as the gate takes it.
  ops::View read(size_t layer, const LayerEmbedding::Weights& weights, const Operand& in,
                 const ops::View& out);

 private:
  const LayerEmbedding embedding_;
  const LayerEmbedding::ModelWeights& weights_;
  ops::Ops& ops_;
  const Products& products_;
  const DecoderBuffers& buffers_;
  const int32_t max_tokens_;
  ops::View rows_;  // [T, layers * width] act
};

}  // namespace rudder::model
