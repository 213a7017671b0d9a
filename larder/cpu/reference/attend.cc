#include "larder/base/error.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

void attend(const Exec&, const AttendArgs&) { LARDER_ASSERT(false && "attend is not built"); }

size_t attend_scratch(const AttendArgs&, int) { return 0; }

}  // namespace larder::cpu::reference
