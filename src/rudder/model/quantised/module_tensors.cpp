#include "rudder/model/quantised/module_tensors.h"

#include <fmt/format.h>

#include <algorithm>

namespace rudder::model {

using tensor::DType;
using tensor::View;
using weights::TensorInfo;

std::string ModuleTensors::where(std::string_view suffix) const {
  const TensorInfo* const tensor = find(suffix);
  return fmt::format("{}: tensor '{}{}'", tensor != nullptr ? tensor->file : checkpoint_.name(),
                     module_, suffix);
}

Result<View> ModuleTensors::take_any(std::string_view suffix) const {
  const TensorInfo* const tensor = find(suffix);
  if (tensor == nullptr || tensor->packed) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("the tensor '{}{}' is missing", module_, suffix), checkpoint_.name());
  }
  if (taken_ != nullptr) taken_->insert(tensor->name);
  return tensor->view;
}

void ModuleTensors::pass(std::string_view suffix) const {
  const TensorInfo* const tensor = find(suffix);
  if (tensor != nullptr && taken_ != nullptr) taken_->insert(tensor->name);
}

Result<View> ModuleTensors::take(std::string_view suffix, const tensor::Shape& shape,
                                 std::initializer_list<DType> types) const {
  RUDDER_TRY(const View view, take_any(suffix));
  if (std::ranges::find(types, view.dtype) == types.end()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("its type is {}, the format has {}", tensor::dtype_name(view.dtype),
                            tensor::dtype_name(*types.begin())),
                where(suffix));
  }
  if (view.shape != shape) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("its shape is {}, the config asks for {}", view.shape.to_string(),
                            shape.to_string()),
                where(suffix));
  }
  return view;
}

}  // namespace rudder::model
