// What `larder batch` does with its engine's events: writes them down, and draws the pool.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "larder/cache/pool_state.h"
#include "larder/generate/event_log.h"

namespace larder::tools {

class BatchEvents final : public PoolEvents {
 public:
  // `draws`: whether draw() will be called.
  explicit BatchEvents(bool draws) : follows_(draws) {}

  void on_event(const PoolEvent& event) noexcept override;
  // Needs: the engine has been made, and no step done. Throws Error(kIo).
  void open_log(const std::filesystem::path& path);
  // The pool as it is, for what stderr has room for below `above` lines.
  std::string draw(int64_t above) const;
  // Throws Error(kIo) when there is a log and not every event is in it.
  void close();

 private:
  PoolEvent first_;
  std::optional<EventLog> log_;
  PoolState pool_;
  bool follows_;
};

}  // namespace larder::tools
