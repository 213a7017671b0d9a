#include "larder/models/model.h"

namespace larder {

std::span<const Architecture> architectures() { return {}; }

}  // namespace larder
