#include "rudder/engine/adapter_rows.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rudder/engine/request.h"

namespace rudder::engine {
namespace {

std::shared_ptr<const lora::Adapter> adapter_of(uint64_t key) {
  auto adapter = std::make_shared<lora::Adapter>();
  adapter->key = {key, key * 31};
  return adapter;
}

TEST(AdapterRows, EqualContentSharesARowAndNobodyIsEvicted) {
  AdapterRows rows({.num_rows = 2, .max_rank = 8});
  const int32_t first = rows.lease(adapter_of(3));
  EXPECT_EQ(rows.lease(adapter_of(3)), first);
  const int32_t second = rows.lease(adapter_of(5));
  EXPECT_NE(second, first);
  EXPECT_EQ(rows.lease(adapter_of(7)), lora::kNoRow);
  rows.release(first);
  EXPECT_EQ(rows.lease(adapter_of(7)), lora::kNoRow);  // one more holds it
  rows.release(first);
  EXPECT_EQ(rows.lease(adapter_of(7)), first);
  std::vector<step::AdapterEdit> edits;
  rows.take_edits(edits);
  ASSERT_EQ(edits.size(), 3U);
  EXPECT_EQ(edits[0].adapter_row, first);
  EXPECT_EQ(edits[2].adapter_row, first);
  EXPECT_EQ(edits[2].adapter->key, adapter_of(7)->key);
  rows.take_edits(edits);
  EXPECT_EQ(edits.size(), 3U);  // each once
}

TEST(AdapterRows, ARowThatNobodyHoldsKeepsItsAdapterTheOldestGoesFirst) {
  AdapterRows rows({.num_rows = 2, .max_rank = 8});
  const int32_t first = rows.lease(adapter_of(3));
  const int32_t second = rows.lease(adapter_of(5));
  rows.release(second);
  rows.release(first);
  EXPECT_FALSE(rows.any_held());
  std::vector<step::AdapterEdit> edits;
  rows.take_edits(edits);
  edits.clear();
  EXPECT_EQ(rows.lease(adapter_of(3)), first);
  rows.take_edits(edits);
  EXPECT_TRUE(edits.empty());  // it was still there
  EXPECT_EQ(rows.lease(adapter_of(9)), second);
}

// adapter.A4
TEST(AdapterRows, BlockKeysBeginWithTheContent) {
  RequestParams params;
  params.cache_salt = "tenant";
  EXPECT_EQ(root_salt(params), "tenant");
  params.adapter = std::make_shared<const lora::NamedAdapter>("a", "/a", adapter_of(3));
  const std::string salted = root_salt(params);
  params.adapter = std::make_shared<const lora::NamedAdapter>("b", "/b", adapter_of(3));
  EXPECT_EQ(root_salt(params), salted);  // the name is nothing
  params.adapter = std::make_shared<const lora::NamedAdapter>("a", "/a", adapter_of(5));
  EXPECT_NE(root_salt(params), salted);
  params.cache_salt.clear();
  EXPECT_NE(root_salt(params), salted);
  EXPECT_EQ(static_cast<unsigned char>(salted[0]), 0xffU);  // no client can write it
}

}  // namespace
}  // namespace rudder::engine
