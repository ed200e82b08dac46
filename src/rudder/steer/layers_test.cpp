#include "rudder/steer/layers.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace rudder::steer {
namespace {

namespace json = boost::json;
using Layers = std::vector<int32_t>;

// Twelve layers; the last alone has a final norm, and layer 3 no resid_mid.
tap::Geometry twelve_layers() {
  tap::Geometry geometry;
  geometry.num_layers = 12;
  geometry.hidden = 8;
  geometry.mlp_width.assign(12, 16);
  geometry.heads.assign(12, {4, 2});
  geometry.sites.assign(12, tap::dense_sites_but(tap::Site::kFinalNorm));
  geometry.sites[3] =
      tap::dense_sites_but(tap::Site::kFinalNorm) & ~tap::site_bit(tap::Site::kResidMid);
  geometry.sites[11] = tap::kDenseSites;
  return geometry;
}

TEST(Layers, EveryForm) {
  const std::pair<const char*, Layers> cases[] = {
      {"4", {4}},
      {"-1", {11}},
      {"4.0", {4}},
      {R"("4")", {4}},
      {R"("4,8-10,-1")", {4, 8, 9, 10, 11}},
      {R"("-3--1")", {9, 10, 11}},
      {"[7, 2, -12]", {7, 2, 0}},
      {R"([7, "0-2", "-2"])", {7, 0, 1, 2, 10}},
      {R"({"ranges": [[1, 2], [-2, -1]]})", {1, 2, 10, 11}},
      {R"({"layers": [5], "ranges": [[1, 1]]})", {5, 1}},
      {R"("all")", {0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11}},
  };
  for (const auto& [text, layers] : cases) {
    const auto read =
        read_layers(json::parse(text), tap::Site::kResidMid, twelve_layers(), "layers");
    ASSERT_TRUE(read) << text << ": " << read.error().to_string();
    EXPECT_EQ(*read, layers) << text;
  }
  EXPECT_EQ(*read_layers("all", tap::Site::kFinalNorm, twelve_layers(), "layers"), Layers{11});
}

TEST(Layers, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"12", "layers"},
      {"-13", "layers"},
      {"1.5", "layers"},
      {"null", "layers"},
      {"true", "layers"},
      {"{}", "layers"},
      {"[]", "layers"},
      {R"("")", "layers"},
      {R"("4,")", "layers"},
      {R"("4-")", "layers"},
      {R"("04")", "layers"},
      {R"("5-4")", "layers"},
      {R"("x")", "layers"},
      {"3", "layers"},
      {R"("2-4")", "layers"},
      {"[1, 99]", "layers[1]"},
      {"[1, 1]", "layers[1]"},
      {"[1, [2]]", "layers[1]"},
      {R"({"layers": 4})", "layers.layers"},
      {R"({"range": [[1, 2]]})", "layers.range"},
      {R"({"ranges": [[2]]})", "layers.ranges[0]"},
      {R"({"ranges": [[2, 1]]})", "layers.ranges[0]"},
      {R"({"ranges": [[0, 12]]})", "layers.ranges[0][1]"},
      {R"({"layers": [1], "ranges": [[0, 1]]})", "layers.ranges[0]"},
  };
  for (const auto& [text, where] : cases) {
    const auto read =
        read_layers(json::parse(text), tap::Site::kResidMid, twelve_layers(), "layers");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(read.error().where, where) << text << ": " << read.error().message;
  }
}

}  // namespace
}  // namespace rudder::steer
