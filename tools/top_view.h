// A pool of blocks as text: who has which, by letter and colour.
#pragma once

#include <string>

#include "larder/cache/pool_state.h"
#include "tools/screen.h"

namespace larder::tools {

struct TopLayout {
  int64_t columns = 80, rows = 16;  // cells at most; a cell stands for several blocks of a big pool
  int64_t legend = 16;              // requests that are listed
  bool colour = false;              // with the control codes of a terminal
};

// With colour, for what a terminal has room for beside `others` lines.
TopLayout layout_for(const ScreenSize& screen, int64_t others = 0);

// Counters, the cells, and a legend. Lines end in "\n".
std::string draw_pool(const PoolState& pool, const TopLayout& layout);

}  // namespace larder::tools
