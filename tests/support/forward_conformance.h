// Runs a case of the conformance kind `forward` on the generic decoder.
#pragma once

#include "larder/generate/session.h"
#include "tests/support/conformance_case.h"

namespace larder::test {

// Feeds the case's ids through the session (whose model is the case's) and compares every logit
// that may be compared. Leaves the session reset.
void check_forward_case(const ConformanceCase& test, Session& session, Comparison& result);

}  // namespace larder::test
