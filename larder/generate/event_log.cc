#include "larder/generate/event_log.h"

#include <limits>
#include <utility>
#include <vector>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"

namespace larder {
namespace {

// What `count` counts.
const char* count_name(PoolEventKind kind) {
  return kind == PoolEventKind::kPool ? "num_blocks" : "tokens";
}

bool has_count(PoolEventKind kind) {
  return kind == PoolEventKind::kPool || kind == PoolEventKind::kBegin ||
         kind == PoolEventKind::kHit || kind == PoolEventKind::kSwapOut ||
         kind == PoolEventKind::kSwapIn || kind == PoolEventKind::kStep;
}

int64_t needed(const JsonFields& fields, const char* key) {
  const std::optional<int64_t> value = fields.integer(key);
  if (!value) fail(fields.what(), ": an event without ", in_quotes(key));
  return *value;
}

int32_t as_int32(const JsonFields& fields, const char* key, int64_t value) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max())
    fail(fields.what(), ": ", in_quotes(key), " ", value, " is out of range");
  return static_cast<int32_t>(value);
}

// `blocks` is where the event's list lies.
PoolEvent read_event(const Json& line, const std::string& what, std::vector<int32_t>& blocks) {
  const JsonFields fields(line, what);
  const std::string name = fields.string("event").value_or("");
  const auto kind = pool_event_from_name(name);
  if (!kind) fail(what, ": ", in_quotes(name), " is no event of a log");
  PoolEvent event{.kind = *kind};
  event.step = needed(fields, "step");
  event.request = fields.integer("request").value_or(PoolEvent::kNobody);
  event.sample = as_int32(fields, "sample", fields.integer("sample").value_or(0));
  if (has_count(*kind)) event.count = needed(fields, count_name(*kind));
  blocks.clear();
  const auto listed = fields.integers("blocks").value_or(std::vector<int64_t>{});
  for (const int64_t block : listed) blocks.push_back(as_int32(fields, "blocks", block));
  event.blocks = blocks;
  return event;
}

}  // namespace

void append_event(std::string& out, const PoolEvent& event) {
  const auto add = [&out](const auto&... parts) { (append_part(out, parts), ...); };
  add("{\"step\":", event.step, ",\"event\":\"", pool_event_name(event.kind), '"');
  if (event.request != PoolEvent::kNobody)
    add(",\"request\":", event.request, ",\"sample\":", event.sample);
  if (has_count(event.kind)) add(",\"", count_name(event.kind), "\":", event.count);
  if (!event.blocks.empty()) {
    const char* before = ",\"blocks\":[";
    for (const int32_t block : event.blocks) add(std::exchange(before, ","), block);
    add(']');
  }
  if (!event.text.empty()) add(",\"reason\":", Json(event.text).dump());
  add("}\n");
}

EventLog::EventLog(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, std::ios::binary | std::ios::trunc) {
  if (!file_) fail_as(ErrorKind::kIo, path_.string(), ": the event log cannot be written there");
}

EventLog::~EventLog() { flush(); }

void EventLog::on_event(const PoolEvent& event) noexcept {
  if (failed_) return;
  try {
    append_event(lines_, event);
  } catch (...) {  // no memory for the line
    failed_ = true;
  }
  if (event.kind == PoolEventKind::kStep) flush();
}

void EventLog::flush() noexcept {
  if (lines_.empty()) return;
  try {
    file_ << lines_ << std::flush;
  } catch (...) {
    failed_ = true;
  }
  failed_ = failed_ || !file_;
  lines_.clear();
}

void EventLog::close() {
  flush();
  if (file_.is_open()) file_.close();
  if (failed_ || !file_)
    fail_as(ErrorKind::kIo, path_.string(), ": the event log is not complete; is the disk full?");
}

void read_event_log(const std::filesystem::path& path, FunctionRef<void(const PoolEvent&)> body) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (text.empty()) fail(path.string(), ": the event log is empty");
  std::vector<int32_t> blocks;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string what = str(path.string(), ": line ", number);
    const size_t end = text.find('\n');
    if (end == std::string_view::npos)
      fail(what, ": the last line is torn: the log was not written to its end");
    const PoolEvent event = read_event(parse_json(text.substr(0, end), what), what, blocks);
    try {
      body(event);
    } catch (const Error& error) {
      fail_as(error.kind(), what, ": ", error.what());
    }
    text.remove_prefix(end + 1);
  }
}

}  // namespace larder
