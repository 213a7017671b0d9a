// larder top: the pool of an engine, drawn from its event log.
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

void wait(int64_t ms) {
  for (; ms > 0 && !interrupted(); ms -= 50)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min<int64_t>(ms, 50)));
  if (interrupted()) throw Interrupted();
}

// Every step, on a terminal over the one before.
class Replay {
 public:
  explicit Replay(int64_t delay) : screen_(STDOUT_FILENO), delay_(delay) {}
  void show(const PoolState& pool) {
    const auto size = screen_size(STDOUT_FILENO);
    if (!size) {
      std::cout << draw_pool(pool, {}) << std::endl;
      return;
    }
    screen_.draw(draw_pool(pool, layout_for(*size)));
    wait(delay_);
  }

 private:
  Screen screen_;
  const int64_t delay_;
};

int run(const Flags& flags) {
  if (flags.delay < 0 || flags.delay > kLongestDelay)
    fail("--delay ", flags.delay, " must be 0 to ", kLongestDelay);
  catch_interrupts();
  PoolState pool;
  Replay replay(flags.delay);
  const auto show_last = [&] {
    if (flags.once && pool.begun()) std::cout << draw_pool(pool, {}) << std::flush;
  };
  try {
    read_event_log(flags.replay, [&](const PoolEvent& event) {
      pool.apply(event);
      if (!flags.once && event.kind == PoolEventKind::kStep) replay.show(pool);
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
