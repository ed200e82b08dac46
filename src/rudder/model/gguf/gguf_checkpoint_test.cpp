// Golden checkpoints of each family, written as GGUF as llama.cpp's converter does: opened again
// they have the same spec and the same tensors.
#include "rudder/model/gguf/gguf_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "rudder/model/binder.h"
#include "rudder/model/gguf/golden_as_gguf_test.h"
#include "rudder/model/loader.h"
#include "rudder/model/rope.h"

namespace rudder::model {
namespace {

using weights::Checkpoint;
using weights::TensorInfo;

std::string told(const ModelSpec& spec, bool with_scale) {
  std::string out = fmt::format("{} {} {} {} {} tied {} scale {} cap {}\n", spec.architecture,
                                spec.hidden, spec.vocab, spec.max_positions, spec.norm_eps,
                                spec.tied_head, spec.embed_scale, spec.final_softcap);
  out += fmt::format("by layer {} {} {}; ", spec.layer_embedding.width, spec.layer_embedding.layers,
                     spec.layer_embedding.vocab);
  out += fmt::format("{} {} {} {}\n", spec.branch_scale, spec.logit_scale, spec.query_growth.slope,
                     spec.query_growth.period);
  for (const LayerSpec& layer : spec.layers) {
    const Attention& a = *attention_of(layer);
    const Experts* const e = experts_of(layer);
    const GatedMlp m = gated_mlp_of(layer) == nullptr ? GatedMlp() : *gated_mlp_of(layer);
    if (e != nullptr) {
      out +=
          fmt::format("{} of {} experts {} {} {} {} {} router {} {} {} {} {} {} {} {}\n", e->chosen,
                      e->count, e->width, static_cast<int>(e->activation), e->bias, e->shared_width,
                      e->own_norms, static_cast<int>(e->router.kind), e->router.renormalises,
                      e->router.scale, e->router.groups, e->router.kept_groups,
                      e->router.correction, e->router.bias, e->router.scales_experts);
    }
    out += fmt::format("own {} {} v {} {} ", a.own_kv, a.kv_layer, a.v_norm, a.v_is_k);
    out += fmt::format("{} {} {} window {} rope {} scale {} bias {} {} norm {} cap {}; ",
                       a.num_heads, a.num_kv_heads, a.head_dim, a.window, a.rope,
                       with_scale ? a.scale : 0.0F, a.qkv_bias, a.out_bias,
                       static_cast<int>(a.qk_norm), std::get<Softmax>(a.weighting).softcap);
    out += fmt::format("{} {} {} norms {} {} {} {}\n", m.width, static_cast<int>(m.activation),
                       m.bias, layer.norms.pre, layer.norms.post, a.norms_rotated, a.neighbours);
  }
  return out;
}

class GgufFamilies : public ::testing::TestWithParam<GgufCase> {};

TEST_P(GgufFamilies, HaveTheSpecAndTheTensorsThatTheyWereMadeFrom) {
  const std::string golden = fmt::format("tests/golden/{}", GetParam().folder);
  if (!std::filesystem::exists(golden + "/meta.json")) {
    GTEST_SKIP() << "its golden is still to be made";
  }
  const auto folder = Checkpoint::open_folder(golden);
  ASSERT_TRUE(folder) << folder.error().to_string();
  const std::string path = GgufWriter(GetParam(), **folder).write();
  const auto file = open_gguf(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(file) << file.error().to_string();

  auto wanted = read_spec(**folder);
  if (GetParam().name == std::string_view("llama")) {  // whose files say nothing of windows
    for (LayerSpec& layer : wanted->layers) attention_of(layer)->window = 0;
  }
  const auto spec = read_spec(**file);
  ASSERT_TRUE(wanted && spec) << spec.error().to_string()
                              << (*file)->read_text("config.json").value();
  EXPECT_EQ(told(*spec, !GetParam().adds_one), told(*wanted, !GetParam().adds_one));
  ASSERT_EQ(spec->ropes.size(), wanted->ropes.size());
  for (size_t i = 0; i < spec->ropes.size(); ++i) {
    EXPECT_NEAR(rope_attention_factor(spec->ropes[i]), rope_attention_factor(wanted->ropes[i]),
                1e-6);
    for (const int32_t length : {64, 512}) {
      const auto ours = rope_frequencies(spec->ropes[i], length);
      const auto theirs = rope_frequencies(wanted->ropes[i], length);
      ASSERT_EQ(ours.size(), theirs.size());
      for (size_t j = 0; j < ours.size(); ++j) {
        // Of a rope of which a part turns, some stand still.
        const double still = theirs[j] == 0 ? 1 : 0;
        EXPECT_NEAR((ours[j] + still) / (theirs[j] + still), 1, 2e-6)
            << "rope " << i << ", pair " << j;
      }
    }
  }
  const auto checked = check_tensors(**file, *spec);
  EXPECT_TRUE(checked) << checked.error().to_string();
  const std::map<std::string, GoldenNumbers> all = written_numbers(**folder, GetParam());
  ASSERT_EQ((*file)->tensors().size(), all.size());
  for (const auto& [name, numbers] : all) {
    const TensorInfo* const found = (*file)->find(name);
    ASSERT_NE(found, nullptr) << name;
    ASSERT_EQ(found->view.shape, numbers.shape) << name;
    const std::vector<float>& theirs = numbers.values;
    std::vector<float> ours(theirs.size());
    if (found->packed) {
      found->packed->unpack(ours.data());
    } else {
      ours = values_of(found->view);
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], theirs[i], GetParam().adds_one ? 1e-7 : 0) << name << " " << i;
    }
  }
}

// A tensor of all experts that has one less than the metadata say, and a layer without its router.
TEST(GgufExpertTensors, WhatContradictsTheMetadataIsRefusedByName) {
  const auto opened = [](const GgufCase& one) {
    const auto folder = Checkpoint::open_folder(fmt::format("tests/golden/{}", one.folder));
    const std::string path = GgufWriter(one, **folder).write();
    auto file = open_gguf(path);
    std::filesystem::remove(path);
    return file;
  };
  GgufCase short_of_one{"qwen3-moe", "qwen3moe"};
  short_of_one.lost_experts = 1;
  const auto refused = opened(short_of_one);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("of 9 experts"), std::string::npos);
  EXPECT_NE(refused.error().where.find("_exps.weight"), std::string::npos)
      << refused.error().to_string();

  GgufCase without_router{"glm4-moe", "glm4moe"};
  without_router.lost_tensor = "ffn_gate_inp";
  const auto file = opened(without_router);
  ASSERT_TRUE(file) << file.error().to_string();
  const auto checked = check_tensors(**file, *read_spec(**file));
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message.find("mlp.gate.weight"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Each, GgufFamilies,
    ::testing::Values(
        GgufCase{"llama3", "llama", true}, GgufCase{"llama2", "llama", true},
        GgufCase{"llama-bias", "llama", true}, GgufCase{"qwen2", "qwen2"},
        GgufCase{"qwen2-yarn", "qwen2"}, GgufCase{"qwen3", "qwen3"},
        GgufCase{"gemma2", "gemma2", false, true}, GgufCase{"gemma3", "gemma3", false, true},
        GgufCase{"gemma3-linear", "gemma3", false, true}, GgufCase{"phi3", "phi3"},
        GgufCase{"phi3-longrope-short", "phi3"}, GgufCase{"olmo2", "olmo2"},
        GgufCase{"gemma", "gemma", false, true}, GgufCase{"ministral3", "mistral3", true},
        GgufCase{"granite", "granite", true}, GgufCase{"exaone4", "exaone4"},
        GgufCase{"exaone4-full", "exaone4"}, GgufCase{"seed-oss", "seed_oss"},
        GgufCase{"ernie4-5", "ernie4_5"}, GgufCase{"glm4", "glm4"},
        GgufCase{"hunyuan", "hunyuan-dense"}, GgufCase{"qwen3-moe", "qwen3moe"},
        GgufCase{"mixtral", "llama", true}, GgufCase{"mixtral", "llama", true, false, true},
        GgufCase{"olmoe", "olmoe"}, GgufCase{"glm4-moe", "glm4moe"}, GgufCase{"gpt-oss", "gpt-oss"},
        GgufCase{"gemma4", "gemma4"}, GgufCase{"gemma4-small", "gemma4"},
        GgufCase{"gemma4-moe", "gemma4"},
        GgufCase{"gemma4-moe", "gemma4", false, false, false, true}),
    [](const auto& info) {
      std::string name = info.param.folder;
      if (info.param.has_old_experts) name += "_old";
      if (info.param.fuses) name += "_fused";
      std::ranges::replace(name, '-', '_');
      return name;
    });

}  // namespace
}  // namespace rudder::model
