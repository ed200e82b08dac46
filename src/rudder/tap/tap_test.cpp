#include <gtest/gtest.h>

#include <tuple>

#include "rudder/tap/capture.h"
#include "rudder/tap/passage.h"
#include "rudder/tap/site.h"

namespace rudder::tap {
namespace {

Geometry two_layers() {
  Geometry geometry;
  geometry.num_layers = 2;
  geometry.hidden = 96;
  geometry.mlp_width = {200, 256};
  geometry.heads = {{3, 32}, {2, 64}};
  geometry.sites = {
      static_cast<uint16_t>(dense_sites_but(Site::kFinalNorm) & ~site_bit(Site::kResidMid)),
      kDenseSites};
  return geometry;
}

TEST(Site, EveryNameReadsBackAsItself) {
  for (int32_t i = 0; i < kNumSites; ++i) {
    const auto site = static_cast<Site>(i);
    const Result<SiteRef> plain = parse_site(site_name(site));
    ASSERT_TRUE(plain.has_value());
    EXPECT_EQ(plain->site, site);
    EXPECT_EQ(plain->layer, -1);
    const Result<SiteRef> dotted = parse_site(std::string(site_name(site)) + ".10");
    ASSERT_TRUE(dotted.has_value());
    EXPECT_EQ(dotted->site, site);
    EXPECT_EQ(dotted->layer, 10);
    if (site == Site::kAttnIn || site == Site::kMlpIn) continue;
    const Result<SiteRef> hook = parse_site("blocks.7.hook_" + std::string(site_name(site)));
    ASSERT_TRUE(hook.has_value());
    EXPECT_EQ(hook->site, site);
    EXPECT_EQ(hook->layer, 7);
  }
}

TEST(Geometry, HeadsGiveTheWidthOfAttnZLayerByLayer) {
  const Geometry geometry = two_layers();
  EXPECT_EQ(geometry.width({0, Site::kAttnZ}), 96);
  EXPECT_EQ(geometry.width({1, Site::kAttnZ}), 128);
}

TEST(Site, ArticleNamesAreAliases) {
  EXPECT_EQ(parse_site("pre_attn")->site, Site::kResidPre);
  EXPECT_EQ(parse_site("post_attn")->site, Site::kResidMid);
  EXPECT_EQ(parse_site("post_mlp")->site, Site::kResidPost);
  EXPECT_EQ(parse_site("post_block")->site, Site::kResidPost);
}

TEST(Site, NamesOfStreamsAreAliases) {
  EXPECT_EQ(parse_site("mhc_streams_pre_attn")->site, Site::kResidPre);
  EXPECT_EQ(parse_site("mhc_streams_pre_mlp")->site, Site::kResidMid);
  EXPECT_EQ(parse_site("mhc_streams_final")->site, Site::kResidPost);
}

// Numbers that streams are written by are read, and no ops work there.
TEST(Site, NumbersOfStreamsAreCapturedAlone) {
  for (const auto& [name, made_of] :
       {std::pair("mhc_attn_post_mix", "resid_pre"), std::pair("mhc_attn_res_mix", "resid_pre"),
        std::pair("mhc_ffn_post_mix", "resid_mid"), std::pair("mhc_ffn_res_mix", "resid_mid")}) {
    const auto site = parse_site(name);
    ASSERT_TRUE(site) << name;
    EXPECT_FALSE(takes_ops(site->site));
    const auto refused = parse_op_site(std::string(name) + ".3");
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().message,
              std::string(name) + " is captured, and no op reads or changes it: it is made of " +
                  made_of + ", all streams of it");
  }
}

TEST(Geometry, NumbersOfStreamsAreAsManyAsStreamsAndPairsOfThem) {
  Geometry geometry = two_layers();
  EXPECT_EQ(
      geometry.check({1, Site::kAttnPostMix}).error().message,
      "layer 1 of this model has no mhc_attn_post_mix: no branch of it writes streams by such "
      "numbers of each token");
  geometry.residual = {ResidualKind::kMixedStreams, 3};
  geometry.sites.back() =
      static_cast<uint16_t>(geometry.sites.back() | kPostMixSites | kResMixSites);
  EXPECT_TRUE(geometry.check({1, Site::kAttnPostMix}));
  for (const Site site : {Site::kAttnPostMix, Site::kMlpPostMix}) {
    EXPECT_EQ(geometry.width({1, site}), 3);
    EXPECT_EQ(geometry.row_bytes({1, site}), 12);
  }
  for (const Site site : {Site::kAttnResMix, Site::kMlpResMix}) {
    EXPECT_EQ(geometry.width({1, site}), 9);
    EXPECT_EQ(geometry.dtype_at({1, site}), tensor::DType::kF32);
  }
  EXPECT_EQ(geometry.fits(1, 3, true), "no point of this layer has 3");
}

TEST(Site, NamesOfTransformerLens) {
  EXPECT_EQ(parse_site("blocks.7.mlp.hook_post")->site, Site::kMlpAct);
  EXPECT_EQ(parse_site("blocks.7.mlp.hook_in")->site, Site::kMlpIn);
  EXPECT_EQ(parse_site("blocks.7.attn.hook_z")->site, Site::kAttnZ);
  EXPECT_EQ(parse_site("blocks.7.mlp.hook_in")->layer, 7);
  // Those that are another tensor there say what they are, and the site that has the name's sound.
  for (const auto& [name, there, here] :
       {std::tuple("blocks.7.hook_mlp_in", "resid_mid", "mlp_in"),
        std::tuple("blocks.7.hook_attn_in", "resid_pre", "attn_in"),
        std::tuple("blocks.7.ln1.hook_normalized", "gain", "attn_in"),
        std::tuple("blocks.7.ln2.hook_normalized", "gain", "mlp_in"),
        std::tuple("ln_final.hook_normalized", "gain", "final_norm")}) {
    const Result<SiteRef> site = parse_site(name);
    ASSERT_FALSE(site.has_value()) << name;
    EXPECT_EQ(site.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(site.error().message.find(there), std::string::npos) << site.error().message;
    EXPECT_NE(site.error().message.find(here), std::string::npos) << site.error().message;
  }
}

TEST(Site, WhatIsNoSiteIsRefusedByName) {
  for (const char* text : {"", ".", "resid", "resid_post.", "resid_post.-1", "resid_post.01",
                           "resid_post.99999999999", "blocks..hook_resid_post", "blocks.1",
                           "blocks.x.hook_resid_post", "blocks.1.hook_", "RESID_POST"}) {
    const Result<SiteRef> site = parse_site(text);
    ASSERT_FALSE(site.has_value()) << text;
    EXPECT_EQ(site.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(site.error().message.find("resid_post"), std::string::npos);
  }
}

TEST(Geometry, RefusesWhatTheModelDoesNotHave) {
  const Geometry geometry = two_layers();
  EXPECT_TRUE(geometry.check({0, Site::kResidPost}).has_value());
  EXPECT_TRUE(geometry.check({1, Site::kFinalNorm}).has_value());
  EXPECT_NE(geometry.check({0, Site::kResidMid}).error().message.find("resid_mid"),
            std::string::npos);
  EXPECT_FALSE(geometry.check({0, Site::kFinalNorm}).has_value());
  EXPECT_FALSE(geometry.check({2, Site::kResidPost}).has_value());
  EXPECT_FALSE(geometry.check({-1, Site::kResidPost}).has_value());
}

TEST(PassageSet, HasTheMacroOpsThatPassItsPoints) {
  PassageSet set;
  EXPECT_EQ(set.size(), 0);
  EXPECT_FALSE(set.has({0, Site::kResidPre}));
  set.add(Point{0, Site::kResidPost});
  EXPECT_EQ(set.size(), 1);
  EXPECT_EQ(set.kinds(), kLayerEnd);
  // One macro-op is the end of a layer and the begin of the next.
  for (const Point point : {Point{0, Site::kMlpOut}, Point{1, Site::kResidPre},
                            Point{1, Site::kAttnIn}, Point{0, Site::kFinalNorm}}) {
    EXPECT_TRUE(set.has(point)) << point.index();
  }
  for (const Point point :
       {Point{0, Site::kResidPre}, Point{0, Site::kMlpAct}, Point{1, Site::kAttnZ},
        Point{1, Site::kResidMid}, Point{1, Site::kResidPost}, Point{60, Site::kMlpAct}}) {
    EXPECT_FALSE(set.has(point)) << point.index();
  }
  PassageSet other;
  other.add(Point{60, Site::kMlpAct});
  other.add_patterns(2);
  EXPECT_EQ(other.kinds(), kActivation | kMixerWeights);
  EXPECT_FALSE(set.contains(other));
  EXPECT_FALSE(other.contains(set));
  set.add(other);
  EXPECT_EQ(set.size(), 3);
  EXPECT_TRUE(set.contains(other));
  EXPECT_TRUE(set.has_patterns(2));
  EXPECT_FALSE(set.has_patterns(1));
  EXPECT_TRUE(set.has({60, Site::kMlpAct}));
  set.clear();
  EXPECT_EQ(set, PassageSet());
}

// The second layer is a mixture of experts, of activations in bf16.
Geometry with_experts() {
  Geometry geometry = two_layers();
  geometry.sites.back() = static_cast<uint16_t>(geometry.sites.back() | kRouterSites);
  geometry.routing = {{}, {.experts = 130, .chosen = 5}};
  return geometry;
}

TEST(Geometry, RoutersHaveRowsOfTheirOwnWidthAndDtype) {
  const Geometry geometry = with_experts();
  const Point logits{1, Site::kRouterLogits};
  const Point chosen{1, Site::kRoutedExperts};
  EXPECT_EQ(geometry.width(logits), 130);
  EXPECT_EQ(geometry.dtype_at(logits), tensor::DType::kF32);
  EXPECT_EQ(geometry.row_bytes(logits), 520);
  EXPECT_EQ(geometry.width(chosen), 5);
  EXPECT_EQ(geometry.dtype_at(chosen), tensor::DType::kI16);
  EXPECT_EQ(geometry.row_bytes(chosen), 10);
  EXPECT_EQ(geometry.dtype_at({1, Site::kMlpOut}), tensor::DType::kBF16);
  EXPECT_EQ(geometry.widest(), 256);
  EXPECT_FALSE(geometry.has_experts(0));
  EXPECT_TRUE(geometry.has_experts(1));
  EXPECT_EQ(geometry.fits(1, 5, false), "no point of this layer has 5");  // takes no ops
}

TEST(Geometry, ARouterThatIsNotThereOrNotTappedIsRefusedByName) {
  Geometry geometry = with_experts();
  EXPECT_EQ(geometry.check({0, Site::kRouterLogits}).error().message,
            "layer 0 of this model has no router_logits: it is no mixture of experts");
  EXPECT_TRUE(geometry.check({1, Site::kRoutedExperts}));
  geometry.leave_out_routers();
  EXPECT_EQ(geometry.check({1, Site::kRoutedExperts}).error().message,
            "layer 1 of this model has no routed_experts: the backend of this server does not tap "
            "its router");
  EXPECT_TRUE(geometry.check({1, Site::kFinalNorm}));
}

TEST(Site, WhatRoutersChoseIsReadAndNoOpsWorkThere) {
  EXPECT_EQ(parse_site("blocks.7.mlp.hook_expert_indices")->site, Site::kRoutedExperts);
  EXPECT_FALSE(parse_site("blocks.7.mlp.hook_expert_weights"));
  EXPECT_EQ(parse_op_site("router_logits.3")->layer, 3);
  const auto refused = parse_op_site("routed_experts.3");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("router_logits"), std::string::npos);
}

TEST(Capture, RowsOfOtherDtypesTakeTheElementsThatTheyNeed) {
  const CaptureSet set{{{{1, Site::kMlpIn}, false},
                        {{1, Site::kRouterLogits}, false},
                        {{1, Site::kRoutedExperts}, false},
                        {{1, Site::kMlpOut}, true}}};
  std::vector<int64_t> offsets;
  // 96, 130 of twice the size, 5 and 96, in steps of 64.
  EXPECT_EQ(record_elements(set, with_experts(), &offsets), 128 + 320 + 64 + 128);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 128, 448, 512}));
}

TEST(PassageSet, OfKindsHasThemInEveryLayer) {
  const PassageSet ends = PassageSet::all(kLayerEnd, 3);
  EXPECT_EQ(ends.size(), 4);  // and one in front of the first
  EXPECT_EQ(ends.kinds(), kLayerEnd);
  EXPECT_TRUE(ends.has({0, Site::kResidPre}));
  EXPECT_TRUE(ends.has({2, Site::kFinalNorm}));
  EXPECT_FALSE(ends.has({1, Site::kMlpAct}));
  const PassageSet all = PassageSet::all(kAllPassages | kMixerWeights, 3);
  EXPECT_EQ(all.size(), 4 + 3 * 5);
  EXPECT_TRUE(all.contains(ends));
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(all.has_patterns(layer));
    for (int32_t site = 0; site < kNumSites; ++site) {
      EXPECT_TRUE(all.has({layer, static_cast<Site>(site)}));
    }
  }
}

TEST(Capture, RowsOfARecordBeginAtAlignedOffsets) {
  const CaptureSet set{
      {{{0, Site::kMlpAct}, false}, {{0, Site::kResidPost}, false}, {{0, Site::kResidPost}, true}}};
  std::vector<int64_t> offsets;
  EXPECT_EQ(record_elements(set, two_layers(), &offsets), 256 + 128 + 128);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 256, 384}));
}

}  // namespace
}  // namespace rudder::tap
