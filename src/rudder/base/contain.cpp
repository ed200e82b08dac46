#include "rudder/base/contain.h"

#include <exception>
#include <new>

namespace rudder {

Error error_in_hand() noexcept {
  // Texts that need no memory of their own.
  Error error{ErrorCode::kInternal, "exception", ""};
  try {
    throw;
  } catch (const std::bad_alloc&) {
    error.code = ErrorCode::kOverloaded;
    error.message = "out of memory";
  } catch (const std::exception& exception) {
    try {
      error.message = exception.what();
    } catch (...) {  // NOLINT(bugprone-empty-catch): it keeps the text that it has
    }
  } catch (...) {
    error.message = "unknown error";
  }
  return error;
}

}  // namespace rudder
