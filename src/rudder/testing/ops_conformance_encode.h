// The part of the conformance suite that encodes whole dictionaries: it makes random ones and
// programs that encode by them. See ops_conformance.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/tap/dictionary_head.h"
#include "rudder/testing/ops_conformance_taps.h"

namespace rudder::testing {

// A dictionary as it lies among the vectors of a table, but that encoder and decoder are f32 here,
// rounded where they are bf16 there.
struct DictionaryFloats {
  tap::DictionaryHead head;
  std::vector<float> floats;
  bool is_bf16 = false;

  double at(int32_t begin, int64_t i) const {
    return floats[static_cast<size_t>(begin) + static_cast<size_t>(i)];
  }
};

class OpsEncode : public OpsTaps {
 protected:
  using Image = DictionaryFloats;

  void SetUp() override {
    if (ops_.feature_ops() == nullptr) GTEST_SKIP() << "the backend encodes no dictionaries";
  }

  // Even, around 0; cheap, since dictionaries are large.
  std::vector<float> even_values(int64_t count, double scale);
  Image random_image(int32_t d_in, int32_t d_out, int32_t num_features, int32_t k,
                     bool has_skip = false);
  // As the device has it, when all of the head is known; the head of that is its first words.
  static std::vector<float> laid_out(const Image& image);
  // All features of a row. `is_sure`: no rounding decides what is active.
  static std::vector<double> features_of(const Image& image, const Row& h, bool& is_sure);
  // Of bf16 from here on.
  static void round_rows(Image& image);
  tap::TapOp edit_of(const Image& image);
  // Encodes by image `number`, with some edits.
  void add_encode(tap::Program& program, int32_t number, const Image& image, bool is_full);
  // Adds 0.5 to every element.
  static void add_add(tap::Program& program, int64_t width);
  // The scene on the device: the images lie in front of the first program's vectors; those of the
  // others are found from their own begin.
  void put_with(Scene& scene, std::vector<Image>& images, int64_t ring_elements);
  // What a program makes of the row that stands in front of its first encode.
  Row expected_row(const std::vector<Image>& images, const tap::Program& program,
                   const std::vector<int32_t>& numbers, Row h, int32_t n, bool& is_sure) const;
  // As the rows between two encodes are. False where an error of fp32 may round to another number.
  bool round_to_act(Row& h) const;
  // Two dictionaries in four programs, of which tokens take any or none.
  void check_rows(int32_t width, std::vector<Image> images, int64_t rows, int& checked);
};

}  // namespace rudder::testing
