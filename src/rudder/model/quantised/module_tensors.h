// ModuleTensors: the tensors of one quantised module, "NAME.qweight" and its like, checked as they
// are taken. The binder makes one for each module; one thread.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/tensor/view.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

class ModuleTensors {
 public:
  using Names = std::set<std::string, std::less<>>;

  // `taken`: gets the names of what is taken; null: nobody asks. Both outlive it.
  ModuleTensors(const weights::Checkpoint& checkpoint, std::string module, Names* taken)
      : checkpoint_(checkpoint), module_(std::move(module)), taken_(taken) {}

  bool has(std::string_view suffix) const { return find(suffix) != nullptr; }
  // Of that shape and of one of those types. Errors name the tensor.
  Result<tensor::View> take(std::string_view suffix, const tensor::Shape& shape,
                            std::initializer_list<tensor::DType> types) const;
  // Any shape and type.
  Result<tensor::View> take_any(std::string_view suffix) const;
  // A tensor that says nothing here, where it is there.
  void pass(std::string_view suffix) const;

  // Where the tensor is, for errors.
  std::string where(std::string_view suffix) const;
  const std::string& module() const { return module_; }
  const weights::Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  const weights::TensorInfo* find(std::string_view suffix) const {
    return checkpoint_.find(module_ + std::string(suffix));
  }

  const weights::Checkpoint& checkpoint_;
  const std::string module_;
  Names* const taken_;
};

}  // namespace rudder::model
