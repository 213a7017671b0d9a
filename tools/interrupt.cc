#include "tools/interrupt.h"

#include <csignal>

namespace larder::tools {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t g_interrupted = 0;

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return g_interrupted != 0; }

}  // namespace larder::tools
