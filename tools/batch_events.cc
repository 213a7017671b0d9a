#include "tools/batch_events.h"

#include <unistd.h>

#include "tools/top_view.h"

namespace larder::tools {

void BatchEvents::on_event(const PoolEvent& event) noexcept {
  if (event.kind == PoolEventKind::kPool) first_ = event;
  if (log_) log_->on_event(event);
  if (!follows_) return;
  try {
    pool_.apply(event);
  } catch (...) {
    follows_ = false;
  }
}

// The pool's own event came with the engine; a log that was there before is replaced only when
// nothing can refuse the run any more.
void BatchEvents::open_log(const std::filesystem::path& path) {
  log_.emplace(path);
  log_->on_event(first_);
}

std::string BatchEvents::draw(int64_t above) const {
  if (!follows_) return "the pool cannot be drawn: it is too big to be followed\n";
  return draw_pool(pool_, layout_for(screen_size(STDERR_FILENO).value_or(ScreenSize()), above));
}

void BatchEvents::close() {
  if (log_) log_->close();
}

}  // namespace larder::tools
