// Runs the taps of one token at one point on the CPU: its captures and its program, on the row that
// an op holds in fp32. The reference and the fast backend share it, so both give the same bits.
// Formulas: tap/tap_op.h. Several threads may run rows of one op at once.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/cpu/row_scale.h"
#include "rudder/ops/tap_args.h"
#include "rudder/tap/dictionary_image.h"

namespace rudder::cpu {

// Order (docs/contracts/taps.md): capture before, ops, capture after. Dot products and norms are
// summed in fp64; the row h [width] is changed in fp32. Without ops at this point, or with empty
// taps, h keeps its bits. Of a token that encodes it runs the ops in front of that alone.
void run_taps(const ops::Taps& taps, int64_t token, float* h, int64_t width);

// What kExperts ops with lo > 0 do to the scores by which a router chooses; their gates read h, the
// token's logits, which run_taps() has left. Nothing with empty taps.
void run_choices(const ops::Taps& taps, int64_t token, float* h, std::span<float> scores);

// Whether the taps do anything to the token's row.
bool is_tapped(const ops::Taps& taps, int64_t token);

// The rest, in parts: the ops of a token from its first kEncode on (none where it has none), a run
// of kEncode given the features of h, and what stands behind the last run, the capture too.
std::span<const tap::TapOp> encoded_ops(const ops::Taps& taps, int64_t token);
void run_encoded(const ops::Taps& taps, int64_t token, std::span<const tap::TapOp> run,
                 std::span<const float> features, float* h, int64_t width);
void finish_taps(const ops::Taps& taps, int64_t token, std::span<const tap::TapOp> rest, float* h,
                 int64_t width);

// A dictionary in the table's memory of vectors.
struct DictionaryView {
  const tap::DictionaryHead* head = nullptr;
  const float* values = nullptr;  // the head's own begin

  // read(row): of floats, or of BF16.
  template <typename F>
  auto with_encoder_row(int64_t feature, const F& read) const {
    return with_row(values + head->encoder, feature * head->d_in, read);
  }
  template <typename F>
  auto with_decoder_row(int64_t feature, const F& read) const {
    return with_row(values + head->decoder, feature * head->d_out, read);
  }
  // to += by decoder_j
  template <typename Number>
  void add_decoder_row(int64_t feature, Number by, Number* to) const {
    with_decoder_row(feature, [&](const auto* row) {
      for (int64_t i = 0; i < head->d_out; ++i) to[i] += by * Number{number(row[i])};
    });
  }
  // `out` [d_out], which may be h [d_in], whose features and scale these are.
  void decode(std::span<const float> features, const RowScale& scale, const float* h,
              float* out) const;

 private:
  static float number(float value) { return value; }
  static float number(tensor::BF16 value) { return tensor::to_float(value); }
  template <typename F>
  auto with_row(const float* begin, int64_t first, const F& read) const {
    if (head->is_bf16 == 0) return read(begin + first);
    return read(static_cast<const tensor::BF16*>(static_cast<const void*>(begin)) + first);
  }
};

inline DictionaryView dictionary_at(const float* values) {
  return {static_cast<const tap::DictionaryHead*>(static_cast<const void*>(values)), values};
}
inline DictionaryView dictionary_at(const ops::TapTable& table, int32_t offset) {
  return dictionary_at(table.vectors.as<float>() + offset);
}

}  // namespace rudder::cpu
