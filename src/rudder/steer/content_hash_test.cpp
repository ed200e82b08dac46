#include "rudder/tap/content_hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>

#include "rudder/base/siphash.h"
#include "rudder/steer/test_support.h"

namespace rudder::steer {
namespace {

constexpr tap::HashSecret kSecret = {1, 2};

// The definition, one word at a time: lane i is a SipHash of words i, i + 8, ... and of the length.
tap::Digest digest_by_definition(const tap::HashSecret& secret, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  const uint64_t length = bytes.size();
  bytes.resize((bytes.size() + 63) / 64 * 64 + (bytes.size() % 64 == 0 ? 64 : 0));
  std::array<tap::Digest, tap::VectorHash::kLanes> lanes;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    SipHash128 key_hash(secret);
    key_hash.update(uint64_t{1});
    key_hash.update(uint64_t{lane});
    SipHash128 hash(key_hash.finish());
    for (size_t at = lane * 8; at < bytes.size(); at += 64) {
      hash.update(std::span(bytes).subspan(at, 8));
    }
    hash.update(length);
    lanes[lane] = hash.finish();
  }
  SipHash128 hash(secret);
  hash.update(uint64_t{2});
  for (const size_t half : {0, 1}) {
    for (const tap::Digest& lane : lanes) hash.update(lane[half]);
  }
  return hash.finish();
}

tap::Program random_program(Random& random) {
  tap::Program program;
  for (int i = 0; i < 3; ++i) {
    tap::ProgramOp op;
    op.point = {i, tap::Site::kResidPost};
    op.op.kind = tap::OpKind::kSwap;
    op.op.gate = tap::GateKind::kHard;
    for (int32_t* offset : {&op.op.v1, &op.op.v2, &op.op.gate_vector}) {
      *offset = static_cast<int32_t>(program.vectors.size());
      const auto values = random.vector(kTestHidden);
      program.vectors.insert(program.vectors.end(), values.begin(), values.end());
      program.vectors.resize((program.vectors.size() + 15) / 16 * 16);
    }
    program.ops.push_back(op);
  }
  return program;
}

TEST(ContentHash, VectorsAreHashedAsDefinedWhateverTheMachineHas) {
  Random random(1);
  const tap::VectorHash hash(kSecret);
  for (int32_t width = 0; width < 70; ++width) {
    const auto values = random.vector(width);
    EXPECT_EQ(hash.digest(values), digest_by_definition(kSecret, values)) << width;
  }
}

TEST(ContentHash, EveryBitOfAVectorCounts) {
  Random random(2);
  auto values = random.vector(37);
  const tap::VectorHash hash(kSecret);
  const tap::Digest before = hash.digest(values);
  for (float& value : values) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      const float old = value;
      value = std::bit_cast<float>(std::bit_cast<uint32_t>(old) ^ 1U << bit);
      EXPECT_NE(hash.digest(values), before);
      value = old;
    }
  }
  EXPECT_EQ(hash.digest(values), before);
  values.push_back(0);
  EXPECT_NE(hash.digest(values), before);
}

TEST(ContentHash, EveryFieldOfAProgramCounts) {
  Random random(3);
  const tap::Program program = random_program(random);
  const tap::Geometry geometry = test_model().geometry;
  const tap::ContentKey before = tap::content_key(kSecret, program, geometry);
  using Change = std::function<void(tap::Program&)>;
  const std::vector<Change> changes = {
      [](tap::Program& p) { p.ops[1].point.layer = 3; },
      [](tap::Program& p) { p.ops[1].point.site = tap::Site::kResidMid; },
      [](tap::Program& p) { p.ops[1].op.kind = tap::OpKind::kRotate; },
      [](tap::Program& p) { p.ops[1].op.gate = tap::GateKind::kSoft; },
      [](tap::Program& p) { p.ops[1].op.schedule = tap::ScheduleKind::kRamp; },
      [](tap::Program& p) { p.ops[1].op.latch = 1; },
      [](tap::Program& p) { p.ops[1].op.strength = 2; },
      [](tap::Program& p) { p.ops[1].op.a = 2; },
      [](tap::Program& p) { p.ops[1].op.b = 2; },
      [](tap::Program& p) { p.ops[1].op.lo = 2; },
      [](tap::Program& p) { p.ops[1].op.hi = 2; },
      [](tap::Program& p) { p.ops[1].op.threshold = 2; },
      [](tap::Program& p) { p.ops[1].op.sharpness = 2; },
      [](tap::Program& p) { p.ops[1].op.begin = 2; },
      [](tap::Program& p) { p.ops[1].op.end = 2; },
      [](tap::Program& p) { p.ops[1].op.from = 2; },
      [](tap::Program& p) { p.ops[1].op.to = 2; },
      [](tap::Program& p) { p.ops[1].op.run = 2; },
      [](tap::Program& p) { p.ops[1].op.norm = tap::FeatureNorm::kLayerNorm; },
      [](tap::Program& p) { p.ops[1].op.edit = tap::FeatureEdit::kMax; },
      [](tap::Program& p) { p.ops[1].op.value = 2; },
      [](tap::Program& p) { p.ops[1].op.sum = 2; },
      [](tap::Program& p) { std::swap(p.ops[1].op.v1, p.ops[1].op.v2); },
      [](tap::Program& p) { p.ops[1].op.gate_vector = p.ops[0].op.gate_vector; },
      [](tap::Program& p) { p.ops[1].op.v2 = tap::kNoVector; },
      [](tap::Program& p) { p.ops.pop_back(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    tap::Program changed = program;
    changes[i](changed);
    EXPECT_FALSE(tap::content_key(kSecret, changed, geometry) == before) << i;
  }
  EXPECT_FALSE(tap::content_key({1, 3}, program, geometry) == before);
  EXPECT_TRUE(tap::content_key(kSecret, {}, geometry).none());
}

TEST(ContentHash, WhereVectorsLieDoesNotCount) {
  Random random(4);
  const tap::Program program = random_program(random);
  tap::Program moved = program;
  moved.vectors.insert(moved.vectors.begin(), 48, 7.0f);
  for (tap::ProgramOp& op : moved.ops) {
    op.op.v1 += 48;
    op.op.v2 += 48;
    op.op.gate_vector += 48;
  }
  const tap::Geometry geometry = test_model().geometry;
  EXPECT_EQ(tap::content_key(kSecret, program, geometry),
            tap::content_key(kSecret, moved, geometry));
}

TEST(ContentHash, MixedKeysDiffer) {
  const tap::ContentKey key = {5, 6};
  EXPECT_FALSE(tap::mix_key(kSecret, key, 1) == tap::mix_key(kSecret, key, 2));
  EXPECT_FALSE(tap::mix_key(kSecret, key, 1) == key);
}

}  // namespace
}  // namespace rudder::steer
