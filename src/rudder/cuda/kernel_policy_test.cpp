#include "rudder/cuda/kernel_policy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace rudder::cuda {
namespace {

using tensor::DType;

const PolicyIdentity kHere{"GPU \"quoted\" 80GB", 13000, 130002, 1};

KernelPolicy three_entries() {
  KernelPolicy policy(kHere);
  PolicyEntry entry;
  entry.kernel = ProductKernel::kOuter;
  for (size_t i = 0; i < entry.algorithm.size(); ++i) entry.algorithm[i] = ~uint64_t{i};
  entry.microseconds = 12.5;
  policy.set({4608, 3584, DType::kF8E4M3, DType::kBF16, true, 64}, entry);
  policy.set({152064, 3584, DType::kBF16, DType::kF32, false, 1}, {ProductKernel::kGemv, {}, 0});
  policy.set({152064, 3584, DType::kBF16, DType::kF32, false, 1, 262401},
             {ProductKernel::kLow, {8, 1, 1, 1}, 0});
  return policy;
}

TEST(KernelPolicy, TextRoundTrip) {
  const KernelPolicy policy = three_entries();
  const Result<KernelPolicy> again = KernelPolicy::parse(policy.to_text(), kHere);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(again->size(), 3U);
  EXPECT_EQ(again->find({152064, 3584, DType::kBF16, DType::kF32, false, 1, 262401})->kernel,
            ProductKernel::kLow);
  EXPECT_EQ(again->to_text(), policy.to_text());
  const PolicyKey key{4608, 3584, DType::kF8E4M3, DType::kBF16, true, 64};
  ASSERT_NE(again->find(key), nullptr);
  EXPECT_EQ(again->find(key)->kernel, ProductKernel::kOuter);
  EXPECT_EQ(again->find(key)->algorithm, policy.find(key)->algorithm);
  EXPECT_EQ(again->find({4608, 3584, DType::kF8E4M3, DType::kBF16, false, 64}), nullptr);
}

TEST(KernelPolicy, AnotherMachineIsStale) {
  const std::string text = three_entries().to_text();
  for (int i = 0; i < 4; ++i) {
    PolicyIdentity other = kHere;
    if (i == 0) other.device = "another";
    if (i == 1) ++other.driver;
    if (i == 2) ++other.library;
    if (i == 3) ++other.kernels;
    const Result<KernelPolicy> parsed = KernelPolicy::parse(text, other);
    ASSERT_FALSE(parsed) << i;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(parsed.error().message.find("was measured on"), std::string::npos);
  }
}

TEST(KernelPolicy, EveryCutOfTheTextIsRefused) {
  const std::string text = three_entries().to_text();
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_FALSE(KernelPolicy::parse(text.substr(0, length), kHere)) << length;
  }
}

TEST(KernelPolicy, WrongMembersAreNamed) {
  const auto error_of = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const Result<KernelPolicy> parsed = KernelPolicy::parse(text, kHere);
    return parsed ? std::string() : parsed.error().to_string();
  };
  const std::string text = three_entries().to_text();
  EXPECT_NE(error_of(text, "\"outer\"", "\"magic\"").find("magic"), std::string::npos);
  EXPECT_NE(error_of(text, "\"bucket\": 1", "\"bucket\": true").find("bucket"), std::string::npos);
  EXPECT_NE(error_of(text, "\"out_dtype\"", "\"other\"").find("out_dtype"), std::string::npos);
  EXPECT_NE(error_of(text, "ffff", "fff").find("algorithm"), std::string::npos);
  EXPECT_NE(error_of(text, "\"format\": 1", "\"format\": 2").find("format"), std::string::npos);
  EXPECT_FALSE(KernelPolicy::parse("[]", kHere));
}

TEST(KernelPolicy, FileIsWrittenReadAndPassedOverWhenStale) {
  const std::string folder = ::testing::TempDir() + "policy" + std::to_string(getpid());
  const std::string path = folder + "/deep/policy.json";
  EXPECT_EQ(read_policy(path, kHere).size(), 0U);
  ASSERT_TRUE(write_policy(path, three_entries()));
  EXPECT_EQ(read_policy(path, kHere).size(), 3U);
  PolicyIdentity other = kHere;
  other.driver = 1;
  EXPECT_EQ(read_policy(path, other).size(), 0U);
  std::ofstream(path) << "not JSON";
  EXPECT_EQ(read_policy(path, kHere).size(), 0U);
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(write_policy("/proc/none/policy.json", three_entries()));
}

}  // namespace
}  // namespace rudder::cuda
