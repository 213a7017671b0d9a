// Ctrl-C and SIGTERM as a question that a run asks between steps.
#pragma once

namespace larder::tools {

constexpr int kInterrupted = 130;  // exit code

// From here on the first signal sets a flag; a second one ends the process at once.
void catch_interrupts();
bool interrupted();

}  // namespace larder::tools
