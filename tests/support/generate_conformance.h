// Runs a case of the conformance kind `generate`.
#pragma once

#include "larder/generate/generation.h"
#include "tests/support/conformance_case.h"

namespace larder::test {

// The length a static cache must have for this case.
int64_t generate_case_length(const Json& json);

// Generates with the session (whose model is the case's) and compares ids and scores. `assistant`:
// a session of the case's assistant_model, null where it has none. Leaves the session reset.
void check_generate_case(const ConformanceCase& test, Session& session, Session* assistant,
                         Comparison& result);

}  // namespace larder::test
