#include "tests/support/source_dir.h"

namespace larder::test {

std::string source_path(const std::string& inside) { return LARDER_SOURCE_DIR "/" + inside; }

}  // namespace larder::test
