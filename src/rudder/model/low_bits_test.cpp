// A module in each format of few bits (tools/golden/low_bit_files.py): its numbers are those that
// the package of the format reads, and what is broken in it is refused by file and tensor.
#include "rudder/model/quantised/low_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "rudder/model/binder.h"
#include "rudder/model/tiny_checkpoint.h"
#include "rudder/ops/stored_row.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::model {
namespace {

using tensor::DType;
using weights::Checkpoint;

constexpr int64_t kRows = 32;
constexpr int64_t kInputs = 128;
const std::string kName = "model.layers.0.mlp.down_proj";

std::vector<std::string> low_bit_cases() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("tests/quantised")) {
    out.push_back(entry.path().string());
  }
  std::ranges::sort(out);
  return out;
}

LinearModule low_bit_module() {
  return {.parts = {{kName, {kRows}}}, .in = kInputs};
}

std::vector<float> golden_numbers(const std::string& folder) {
  const auto file = weights::MappedFile::open(folder + "/golden.safetensors");
  const auto golden = weights::parse_safetensors((*file)->bytes(), "golden");
  const auto bytes = golden->bytes_of(*golden->find("numbers"));
  std::vector<float> out(kRows * kInputs);
  EXPECT_EQ(bytes.size(), out.size() * sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(LowBits, NumbersAreThoseOfTheFormatsOwnPackage) {
  const std::vector<std::string> folders = low_bit_cases();
  EXPECT_EQ(folders.size(), 26U);
  for (const std::string& folder : folders) {
    SCOPED_TRACE(folder);
    const auto checkpoint = Checkpoint::open_folder(folder);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    const auto quantisation = read_quantisation(**checkpoint);
    ASSERT_TRUE(quantisation) << quantisation.error().to_string();
    const std::vector<float> wanted = golden_numbers(folder);
    const float most = *std::ranges::max_element(wanted, {}, [](float v) { return std::abs(v); });
    for (const bool keeps : {true, false}) {
      KeepingOps ops;
      ops.keeps_all = keeps;
      Binder binder(**checkpoint, *quantisation);
      const auto looked = binder.take_linear(low_bit_module());
      ASSERT_TRUE(looked) << looked.error().to_string();
      EXPECT_TRUE(looked->parts.empty());
      ASSERT_TRUE(binder.read_for(ops));
      const auto bound = binder.take_linear(low_bit_module());
      ASSERT_TRUE(bound) << bound.error().to_string();
      EXPECT_TRUE(binder.check_all_taken({}));
      ASSERT_EQ(bound->parts.size(), 1U);
      const ops::LinearPart& part = bound->parts.front();
      EXPECT_EQ(part.format,
                stored_formats(**checkpoint, ops)(kName, ops::ProductUse::kHidden, false).value());
      EXPECT_EQ(part.format.is_wide(), !keeps || folder.find("act") != std::string::npos);
      std::vector<float> row(kInputs);
      for (int64_t r = 0; r < kRows; ++r) {
        ops::read_stored_row(part, r, row.data());
        for (int64_t i = 0; i < kInputs; ++i) {
          ASSERT_NEAR(row[static_cast<size_t>(i)], wanted[static_cast<size_t>(r * kInputs + i)],
                      1e-6f * std::abs(most))
              << "row " << r << ", input " << i << ", " << ops::format_name(part.format);
        }
      }
    }
  }
}

// A rank's half of the inputs, and of the rows.
TEST(LowBits, ARanksShareHasItsNumbers) {
  for (const std::string& folder : low_bit_cases()) {
    SCOPED_TRACE(folder);
    const auto checkpoint = Checkpoint::open_folder(folder).value();
    const Quantisation quantisation = read_quantisation(*checkpoint).value();
    const std::vector<float> wanted = golden_numbers(folder);
    KeepingOps ops;
    ops.keeps_all = true;
    for (const bool cuts_rows : {true, false}) {
      Binder binder(*checkpoint, quantisation);
      ASSERT_TRUE(binder.read_for(ops));
      const Extent rows = cuts_rows ? Extent{kRows, {kRows / 2, kRows / 2}} : Extent{kRows};
      const Extent inputs =
          cuts_rows ? Extent{kInputs} : Extent{kInputs, {kInputs / 2, kInputs / 2}};
      const auto bound = binder.take_linear({.parts = {{kName, {rows}}}, .in = inputs});
      if (!bound) {
        EXPECT_NE(bound.error().message.find("cuts a scale"), std::string::npos);
        EXPECT_TRUE(folder.ends_with("fp8-blocks")) << bound.error().to_string();
        continue;
      }
      std::vector<float> row(static_cast<size_t>(inputs.count()));
      ops::read_stored_row(bound->parts.front(), 3, row.data());
      const int64_t first = (rows.share.begin + 3) * kInputs + inputs.share.begin;
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_NEAR(row[i], wanted[static_cast<size_t>(first) + i], 1e-5) << i;
      }
    }
  }
}

// ----- broken files -----

struct StoredTensor {
  weights::TensorDecl decl;
  std::string bytes;
};

std::vector<StoredTensor> tensors_in(const Checkpoint& checkpoint) {
  std::vector<StoredTensor> out;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    weights::TensorShape shape;
    for (int i = 0; i < tensor.view.shape.rank(); ++i) {
      shape.dims[shape.rank++] = static_cast<uint64_t>(tensor.view.shape[i]);
    }
    out.push_back({{tensor.name, tensor.view.dtype, shape},
                   {static_cast<const char*>(tensor.view.data), tensor.view.bytes()}});
  }
  return out;
}

// What the loader says of these tensors; nothing: it takes them.
std::string told_of(std::vector<StoredTensor> tensors, std::string config) {
  std::vector<weights::TensorDecl> decls;
  for (const StoredTensor& tensor : tensors) decls.push_back(tensor.decl);
  const auto header = weights::make_safetensors_header(decls, {});
  std::string file(reinterpret_cast<const char*>(header->data()), header->size());
  for (const StoredTensor& tensor : tensors) file += tensor.bytes;
  const auto checkpoint =
      Checkpoint::open_memory({{"config.json", std::as_bytes(std::span(config))},
                               {"model.safetensors", std::as_bytes(std::span(file))}});
  if (!checkpoint) return checkpoint.error().to_string();
  const auto quantisation = read_quantisation(**checkpoint);
  if (!quantisation) return quantisation.error().to_string();
  KeepingOps ops;
  ops.keeps_all = true;
  Binder binder(**checkpoint, *quantisation);
  if (const auto looked = binder.take_linear(low_bit_module()); !looked) {
    return looked.error().to_string();
  }
  if (const auto all = binder.check_all_taken({}); !all) return all.error().to_string();
  EXPECT_TRUE(binder.read_for(ops));
  const auto bound = binder.take_linear(low_bit_module());
  return bound ? "" : bound.error().to_string();
}

DType of_same_size(DType dtype) {
  switch (dtype) {
    case DType::kI32:
      return DType::kF32;
    case DType::kF32:
      return DType::kI32;
    case DType::kF16:
    case DType::kBF16:
      return DType::kI16;
    case DType::kU8:
      return DType::kI8;
    case DType::kI64:
      return DType::kF64;
    default:
      return DType::kU8;
  }
}

TEST(LowBits, WhatIsBrokenIsRefusedByTensor) {
  using Break = std::function<void(StoredTensor&)>;
  const std::vector<Break> breaks = {
      [](StoredTensor& tensor) { tensor.decl.dtype = of_same_size(tensor.decl.dtype); },
      [](StoredTensor& tensor) {  // a line more
        const size_t line = tensor.bytes.size() / tensor.decl.shape.dims[0]++;
        tensor.bytes += tensor.bytes.substr(0, line);
      },
      [](StoredTensor& tensor) {  // a line less
        const size_t line = tensor.bytes.size() / tensor.decl.shape.dims[0]--;
        tensor.bytes.resize(tensor.bytes.size() - line);
      },
      [](StoredTensor& tensor) {  // the same in one line
        const weights::TensorShape& shape = tensor.decl.shape;
        uint64_t count = 1;
        for (size_t i = 0; i < shape.rank; ++i) count *= shape.dims[i];
        tensor.decl.shape = weights::TensorShape::of({1, count});
      }};
  int refused = 0;
  for (const std::string& folder : low_bit_cases()) {
    const auto checkpoint = Checkpoint::open_folder(folder).value();
    const std::string config = checkpoint->read_text("config.json").value();
    const std::vector<StoredTensor> whole = tensors_in(*checkpoint);
    ASSERT_EQ(told_of(whole, config), "") << folder;
    for (size_t i = 0; i < whole.size(); ++i) {
      const std::string& name = whole[i].decl.name;
      for (size_t b = 0; b < breaks.size(); ++b) {
        std::vector<StoredTensor> broken = whole;
        breaks[b](broken[i]);
        // A text is still one, and so is what was one line.
        if (b == 3 && (name.ends_with("nf4") || broken[i].decl.shape == whole[i].decl.shape)) {
          continue;
        }
        const std::string told = told_of(broken, config);
        EXPECT_NE(told.find(name), std::string::npos) << folder << ", break " << b << ": " << told;
        ++refused;
      }
      std::vector<StoredTensor> without = whole;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      // Groups that follow one another need no list.
      const bool may_miss = name.ends_with("g_idx");
      EXPECT_EQ(told_of(without, config).empty(), may_miss) << folder << " without " << name;
      refused += may_miss ? 0 : 1;
      std::vector<StoredTensor> more = whole;
      more.push_back(whole[i]);
      more.back().decl.name += "_more";
      const std::string told = told_of(more, config);
      EXPECT_NE(told.find(name + "_more"), std::string::npos) << folder << ": " << told;
      ++refused;
    }
  }
  EXPECT_GE(refused, 500);
}

TEST(LowBits, AScaleIsANumber) {
  int refused = 0;
  for (const std::string& folder : low_bit_cases()) {
    const auto checkpoint = Checkpoint::open_folder(folder).value();
    const std::string config = checkpoint->read_text("config.json").value();
    std::vector<StoredTensor> broken = tensors_in(*checkpoint);
    for (StoredTensor& tensor : broken) {
      const std::string& name = tensor.decl.name;
      if (name.find("scale") == std::string::npos && name.find("absmax") == std::string::npos) {
        continue;
      }
      if (tensor.decl.dtype == DType::kU8) continue;
      const std::string kept = tensor.bytes;
      std::ranges::fill(tensor.bytes, '\xff');  // a NaN in each of these types
      const std::string told = told_of(broken, config);
      EXPECT_NE(told.find("is no scale"), std::string::npos) << folder << ' ' << name << told;
      tensor.bytes = kept;
      ++refused;
    }
  }
  EXPECT_GE(refused, 20);
}

TEST(LowBits, AnInputOfNoGroupIsRefused) {
  for (const char* const folder :
       {"tests/quantised/gptq-desc-act", "tests/quantised/ct-actorder"}) {
    const auto checkpoint = Checkpoint::open_folder(folder).value();
    const std::string config = checkpoint->read_text("config.json").value();
    for (const int32_t group : {-1, 4}) {
      std::vector<StoredTensor> broken = tensors_in(*checkpoint);
      for (StoredTensor& tensor : broken) {
        if (!tensor.decl.name.ends_with("g_idx")) continue;
        std::memcpy(tensor.bytes.data() + 17 * sizeof(group), &group, sizeof(group));
      }
      EXPECT_NE(told_of(broken, config).find("g_idx': input 17 is in group"), std::string::npos)
          << told_of(broken, config);
    }
  }
  // Groups in an order that the config does not tell.
  const auto checkpoint = Checkpoint::open_folder("tests/quantised/gptq-desc-act").value();
  std::string config = checkpoint->read_text("config.json").value();
  config.replace(config.find("\"desc_act\": true"), 16, "\"desc_act\": false");
  EXPECT_NE(told_of(tensors_in(*checkpoint), config).find("'desc_act' is false"),
            std::string::npos);
}

}  // namespace
}  // namespace rudder::model
