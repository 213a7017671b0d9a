#include <algorithm>
#include <array>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "larder/base/error.h"
#include "tools/command.h"
#include "tools/version.h"

namespace larder::tools {
namespace {

constexpr std::array kCommands = {
    Command{"generate", add_generate}, Command{"batch", add_batch},
    Command{"bench", add_bench},       Command{"score", add_score},
    Command{"inspect", add_inspect},   Command{"convert", add_convert},
    Command{"profile", add_profile},   Command{"verify", add_verify},
    Command{"plan", add_plan},         Command{"top", add_top},
};

int complain(const std::string& message, int code) {
  std::cerr << "larder: " << message << std::endl;
  return code;
}

// What was asked for was wrong, or the run failed on the way.
int exit_code(ErrorKind kind) {
  return kind == ErrorKind::kOutOfMemory || kind == ErrorKind::kNoRoom ? 1 : 2;
}

// CLI11 says of "larder foo" only that a subcommand is missing.
void check_name(int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  names.reserve(kCommands.size());
  for (const Command& command : kCommands) names.emplace_back(command.name);
  if (std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    fail("unknown subcommand ", in_quotes(argv[1]), "; there are: ", join(names, ", "));
  }
}

}  // namespace

int run_command(int argc, const char* const* argv) {
  CLI::App app("larder: small language models from safetensors, with every kind of KV cache",
               "larder");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.footer("larder SUBCOMMAND --help shows an example of each.");
  std::function<int()> action;
  for (const Command& command : kCommands) command.add(app, action);
  try {
    check_name(argc, argv);
    app.parse(argc, argv);
    return action();
  } catch (const CLI::Success& asked) {  // --help, --version
    const int code = app.exit(asked);
    std::cout << std::endl;  // neither a footer nor a version has an end of line of its own
    return code;
  } catch (const CLI::ParseError& error) {
    return complain(str(error.what(), "; see larder --help"), 2);
  } catch (const Error& error) {
    return complain(error.what(), exit_code(error.kind()));
  } catch (const std::bad_alloc&) {
    return complain("out of memory: the system refused an allocation", 1);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}

}  // namespace larder::tools
