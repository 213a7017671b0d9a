// The events of an engine in a file, one JSON object a line, and back again. docs/observability.md
// has the fields.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "larder/cache/pool_events.h"
#include "larder/tensor/thread_pool.h"

namespace larder {

// Replaces the file. Lines are written at the end of each step. What goes wrong in between is kept
// for close(): a disk that is full ends the log and not the step.
class EventLog final : public PoolEvents {
 public:
  // Throws Error(kIo).
  explicit EventLog(std::filesystem::path path);
  ~EventLog() override;  // closes; drops what close() would throw
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void on_event(const PoolEvent& event) noexcept override;
  // Writes the rest. Throws Error(kIo) when not every event is in the file.
  void close();

 private:
  void flush() noexcept;

  std::filesystem::path path_;
  std::ofstream file_;
  std::string lines_;  // not yet written
  bool failed_ = false;
};

// One event as a line, with its end, behind `out`.
void append_event(std::string& out, const PoolEvent& event);

// Gives every event of a log to `body`, in order. Throws Error, naming the file and the line, for
// what is no log and for what `body` throws as one; a last line that was not written to its end is
// an error after all others have been given.
void read_event_log(const std::filesystem::path& path, FunctionRef<void(const PoolEvent&)> body);

}  // namespace larder
