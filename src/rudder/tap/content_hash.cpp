#include "rudder/tap/content_hash.h"

#include <bit>
#include <cstring>
#include <unordered_map>

#include "rudder/base/siphash.h"

namespace rudder::tap {
namespace {

// First word of a message, so that no message of one kind is one of another.
enum Message : uint64_t { kLaneKey = 1, kVector = 2, kProgram = 3, kMixed = 4 };

using Lanes = uint64_t __attribute__((vector_size(8 * VectorHash::kLanes)));
constexpr size_t kBlockBytes = sizeof(Lanes);

struct LaneState {
  Lanes v0, v1, v2, v3;
};

__attribute__((always_inline)) inline void rotate_left(Lanes& lanes, int bits) {
  lanes = (lanes << bits) | (lanes >> (64 - bits));
}

__attribute__((always_inline)) inline void rounds(LaneState& s, int count) {
  for (int i = 0; i < count; ++i) {
    s.v0 += s.v1;
    rotate_left(s.v1, 13);
    s.v1 ^= s.v0;
    rotate_left(s.v0, 32);
    s.v2 += s.v3;
    rotate_left(s.v3, 16);
    s.v3 ^= s.v2;
    s.v0 += s.v3;
    rotate_left(s.v3, 21);
    s.v3 ^= s.v0;
    s.v2 += s.v1;
    rotate_left(s.v1, 17);
    s.v1 ^= s.v2;
    rotate_left(s.v2, 32);
  }
}

// Compresses blocks of one word a lane; lane i takes words i, i + kLanes, ...
__attribute__((always_inline)) inline void compress_blocks(LaneState& state, const std::byte* bytes,
                                                           size_t blocks) {
  LaneState s = state;
  for (size_t i = 0; i < blocks; ++i) {
    Lanes words;
    std::memcpy(&words, bytes + i * kBlockBytes, kBlockBytes);
    s.v3 ^= words;
    rounds(s, 2);
    s.v0 ^= words;
  }
  state = s;
}

#define RUDDER_COMPRESS(name, attribute)                                                    \
  attribute void compress_##name(LaneState& state, const std::byte* bytes, size_t blocks) { \
    compress_blocks(state, bytes, blocks);                                                  \
  }
using Compress = void (*)(LaneState&, const std::byte*, size_t);
RUDDER_COMPRESS(plain, )
#ifdef __x86_64__
RUDDER_COMPRESS(avx2, __attribute__((target("avx2"))))
RUDDER_COMPRESS(avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))))
#endif

Compress choose_compress() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return compress_avx512;
  }
  if (__builtin_cpu_supports("avx2")) return compress_avx2;
#endif
  return compress_plain;
}

void append(SipHash128& hash, const Digest& digest) {
  hash.update(digest[0]);
  hash.update(digest[1]);
}

// The parameters of an op, without the offsets of its vectors. A site by its name: keys outlive the
// numbers of sites, since records on a disk are named by them.
void append_parameters(SipHash128& hash, const tap::ProgramOp& op) {
  tap::TapOp bare = op.op;
  bare.v1 = bare.v2 = bare.gate_vector = tap::kNoVector;
  hash.update(uint64_t{static_cast<uint32_t>(op.point.layer)});
  const std::string_view site = site_name(op.point.site);
  hash.update(uint64_t{site.size()});
  hash.update(std::as_bytes(std::span(site)));
  hash.update(uint64_t{sizeof(bare)});
  hash.update(std::as_bytes(std::span(&bare, 1)));
}

}  // namespace

VectorHash::VectorHash(const HashSecret& secret) : secret_(secret) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    SipHash128 hash(secret);
    hash.update(kLaneKey);
    hash.update(uint64_t{lane});
    const Digest key = hash.finish();
    key0_[lane] = key[0];
    key1_[lane] = key[1];
  }
}

Digest VectorHash::digest(std::span<const float> values) const {
  static const Compress kCompress = choose_compress();
  Lanes key0;
  Lanes key1;
  std::memcpy(&key0, key0_.data(), sizeof(key0));
  std::memcpy(&key1, key1_.data(), sizeof(key1));
  LaneState state = {key0 ^ 0x736f6d6570736575ULL, key1 ^ (0x646f72616e646f6dULL ^ 0xee),
                     key0 ^ 0x6c7967656e657261ULL, key1 ^ 0x7465646279746573ULL};
  const std::span<const std::byte> bytes = std::as_bytes(values);
  const size_t whole = bytes.size() / kBlockBytes;
  kCompress(state, bytes.data(), whole);
  // Three blocks end every lane: the tail padded with zeros, the length, which tells it from zeros,
  // and the last word of SipHash, the length of the lane's own message in its highest byte.
  constexpr size_t kLast = 3;
  std::array<std::byte, kLast* kBlockBytes> last = {};
  const size_t tail = bytes.size() - whole * kBlockBytes;
  if (tail > 0) std::memcpy(last.data(), bytes.data() + whole * kBlockBytes, tail);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const std::array<uint64_t, 2> words = {bytes.size(), (whole + 2) * sizeof(uint64_t) << 56};
    std::memcpy(last.data() + kBlockBytes + lane * sizeof(uint64_t), &words[0], sizeof(uint64_t));
    std::memcpy(last.data() + 2 * kBlockBytes + lane * sizeof(uint64_t), &words[1],
                sizeof(uint64_t));
  }
  kCompress(state, last.data(), kLast);

  state.v2 ^= 0xee;
  rounds(state, 4);
  const Lanes low = state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
  state.v1 ^= 0xdd;
  rounds(state, 4);
  const Lanes high = state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
  SipHash128 hash(secret_);
  hash.update(kVector);
  hash.update(std::as_bytes(std::span(&low, 1)));
  hash.update(std::as_bytes(std::span(&high, 1)));
  return hash.finish();
}

tap::ContentKey content_key(const HashSecret& secret, const tap::Program& program,
                            const tap::Geometry& geometry) {
  if (program.empty()) return {};
  const VectorHash vectors(secret);
  // Ops may share a vector: it is hashed once, but covered by every op that uses it.
  std::unordered_map<int32_t, Digest> digests;
  SipHash128 hash(secret);
  hash.update(kProgram);
  hash.update(uint64_t{program.ops.size()});
  for (const tap::ProgramOp& op : program.ops) {
    append_parameters(hash, op);
    if (op.op.kind == tap::OpKind::kEncode) {
      const tap::ContentKey& key = program.dictionaries[static_cast<size_t>(op.op.v1)]->key;
      append(hash, {key.low, key.high});
      continue;
    }
    const auto width = static_cast<size_t>(geometry.width(op.point));
    for (const int32_t offset : {op.op.v1, op.op.v2, op.op.gate_vector}) {
      hash.update(uint64_t{offset == tap::kNoVector ? 0 : width});
      if (offset == tap::kNoVector) continue;
      const auto [found, is_new] = digests.try_emplace(offset);
      if (is_new) {
        found->second =
            vectors.digest(std::span(program.vectors).subspan(static_cast<size_t>(offset), width));
      }
      append(hash, found->second);
    }
  }
  const Digest digest = hash.finish();
  // {0, 0} means none: a program gets another key in the one case of 2^128.
  return {digest[0] == 0 && digest[1] == 0 ? 1 : digest[0], digest[1]};
}

tap::ContentKey mix_key(const HashSecret& secret, const tap::ContentKey& content, uint64_t number) {
  SipHash128 hash(secret);
  hash.update(kMixed);
  hash.update(content.low);
  hash.update(content.high);
  hash.update(number);
  const Digest digest = hash.finish();
  return {digest[0] == 0 && digest[1] == 0 ? 1 : digest[0], digest[1]};
}

}  // namespace rudder::tap
