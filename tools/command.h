// The subcommands of `larder`: one file each, one line in larder.cc each.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>

namespace larder::tools {

// Adds a subcommand to `app` whose callback sets `action`; the action's value is the exit code.
struct Command {
  const char* name;
  void (*add)(CLI::App& app, std::function<int()>& action);
};

void add_batch(CLI::App& app, std::function<int()>& action);
void add_bench(CLI::App& app, std::function<int()>& action);
void add_convert(CLI::App& app, std::function<int()>& action);
void add_generate(CLI::App& app, std::function<int()>& action);
void add_inspect(CLI::App& app, std::function<int()>& action);
void add_plan(CLI::App& app, std::function<int()>& action);
void add_profile(CLI::App& app, std::function<int()>& action);
void add_score(CLI::App& app, std::function<int()>& action);
void add_top(CLI::App& app, std::function<int()>& action);
void add_verify(CLI::App& app, std::function<int()>& action);

// The whole command, as main() runs it. Exit codes: 0 done, 1 the run failed, 2 the request was
// wrong, 130 interrupted. Every failure is one line on stderr that begins with "larder: ".
int run_command(int argc, const char* const* argv);

}  // namespace larder::tools
