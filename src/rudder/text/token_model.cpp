#include "rudder/text/token_model.h"

#include <boost/json.hpp>

#include "rudder/text/json_fields.h"

namespace rudder::text {

Result<TokenModel> TokenModel::parse(const boost::json::value& model, bool pieces_are_bytes) {
  RUDDER_TRY(const auto* object, as_object(model, "model"));
  const auto* const type = object->if_contains("type");
  if (type == nullptr || !type->is_string() || type->get_string() != "Unigram") {
    RUDDER_TRY(Bpe bpe, Bpe::parse(model, pieces_are_bytes));
    return TokenModel(std::move(bpe));
  }
  if (pieces_are_bytes) {
    return fail(ErrorCode::kUnsupported, "Unigram behind ByteLevel is not supported", "model.type");
  }
  RUDDER_TRY(Unigram unigram, Unigram::parse(model));
  return TokenModel(std::move(unigram));
}

}  // namespace rudder::text
