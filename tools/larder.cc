#include "tools/command.h"

int main(int argc, char** argv) { return larder::tools::run_command(argc, argv); }
