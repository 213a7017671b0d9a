#pragma once

#include <functional>
#include <string>

namespace larder {

// The text of the Error that `action` throws, or "" when it throws none.
std::string error_of(const std::function<void()>& action);

}  // namespace larder
