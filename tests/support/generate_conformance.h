// Runs a case of the conformance kind `generate`.
#pragma once

#include "larder/generate/generation.h"
#include "tests/support/conformance_case.h"

namespace larder::test {

// Why the case cannot run here yet (beams, assistants, ...); empty when it can.
std::string generate_case_needs(const Json& json);

// The length a static cache must have for this case.
int64_t generate_case_length(const Json& json);

// Generates with the session (whose model is the case's) and compares ids. Leaves the session
// reset.
void check_generate_case(const ConformanceCase& test, Session& session, Comparison& result);

}  // namespace larder::test
