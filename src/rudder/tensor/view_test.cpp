#include "rudder/tensor/view.h"

#include <gtest/gtest.h>

#include <vector>

namespace rudder::tensor {
namespace {

TEST(View, RowsPointIntoTheParent) {
  std::vector<float> data(12);
  const View view{data.data(), DType::kF32, {4, 3}};
  const View part = view.rows(1, 2);
  EXPECT_EQ(part.as<float>(), data.data() + 3);
  EXPECT_EQ(part.shape, (Shape{2, 3}));
  EXPECT_EQ(part.bytes(), 24u);
  EXPECT_EQ(part.shape.to_string(), "[2, 3]");
}

}  // namespace
}  // namespace rudder::tensor
