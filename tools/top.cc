// larder top: the pool of an engine, drawn from its event log.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "larder/base/error.h"
#include "larder/generate/event_log.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/numbers.h"
#include "tools/top_view.h"

namespace larder::tools {
namespace {

constexpr int64_t kLongestDelay = 60'000;  // ms

struct Flags {
  std::string replay;
  int64_t delay = 100;  // ms
  bool once = false;
};

// Thrown through the reader, which knows no other end than that of the file.
struct Interrupted {};

// What the terminal has room for; control codes for a terminal only.
TopLayout layout_of_output(bool plain) {
  TopLayout layout;
  layout.colour = !plain;
  winsize size{};
  if (plain || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return layout;
  layout.columns = size.ws_col;
  layout.rows = std::max(size.ws_row / 2, 1);
  layout.legend = std::max<int64_t>(size.ws_row - layout.rows - 5, 1);
  return layout;
}

void wait(int64_t ms) {
  for (; ms > 0 && !interrupted(); ms -= 50)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min<int64_t>(ms, 50)));
  if (interrupted()) throw Interrupted();
}

void show(const PoolState& pool, bool plain, int64_t delay) {
  const char* const home = plain ? "" : "\x1b[H\x1b[2J";
  std::cout << home << draw_pool(pool, layout_of_output(plain)) << (plain ? "\n" : "")
            << std::flush;
  if (!plain) wait(delay);
}

int run(const Flags& flags) {
  if (flags.delay < 0 || flags.delay > kLongestDelay)
    fail("--delay ", flags.delay, " must be 0 to ", kLongestDelay);
  const bool plain = flags.once || isatty(STDOUT_FILENO) == 0;
  catch_interrupts();
  PoolState pool;
  const auto show_last = [&] {
    if (flags.once && pool.begun())
      std::cout << draw_pool(pool, layout_of_output(true)) << std::flush;
  };
  try {
    read_event_log(flags.replay, [&](const PoolEvent& event) {
      pool.apply(event);
      if (!flags.once && event.kind == PoolEventKind::kStep) show(pool, plain, flags.delay);
      if (interrupted()) throw Interrupted();
    });
  } catch (const Interrupted&) {
    return kInterrupted;
  } catch (const Error&) {  // the log of a run that was killed is worth a look as far as it goes
    show_last();
    throw;
  }
  show_last();
  return 0;
}

}  // namespace

void add_top(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app =
      *parent.add_subcommand("top", "Draw the blocks of an engine's pool, step by step");
  auto flags = std::make_shared<Flags>();
  app.add_option("--replay", flags->replay, "An engine's event log")->type_name("FILE")->required();
  add_number(app, "--delay", flags->delay, "Milliseconds a step on a terminal (default 100)");
  app.add_flag("--once", flags->once, "The last step alone, as plain text");
  app.footer(
      "A cell is a block: the letter of the request that has it, # shared, + cached, . free.\n\n"
      "Example:\n  larder top --replay events.jsonl --once");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
