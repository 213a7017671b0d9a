#include "tests/support/error_of.h"

#include "larder/base/error.h"

namespace larder {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace larder
