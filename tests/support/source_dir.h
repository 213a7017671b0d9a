// Where the project's files lie, for tests that read them.
#pragma once

#include <string>

namespace larder::test {

// A path inside the source tree: source_path("models/toy").
std::string source_path(const std::string& inside);

}  // namespace larder::test
