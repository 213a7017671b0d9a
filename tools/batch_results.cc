#include "tools/batch_results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "larder/base/error.h"

namespace larder::tools {
namespace {

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  fail_as(ErrorKind::kIo, path, ": ", what, ": ", std::strerror(errno));
}

// A file of requests, given as the output by mistake, has ids as well.
bool is_result(const JsonFields& fields) {
  return fields.has("id") &&
         (fields.has("error") || fields.has("output_ids") || fields.has("choices"));
}

Json ending(const BatchSample& sample) {
  if (!sample.error.empty()) return {{"error", sample.error}};
  const Result& result = sample.result;
  return {{"text", result.text},
          {"output_ids", result.output_ids},
          {"finish_reason", finish_reason_name(result.finish_reason)}};
}

}  // namespace

BatchResults::BatchResults(const std::filesystem::path& path) : path_(path.string()) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_io(path_, "cannot be opened to add results");
  try {
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0)
      fail(path_, ": another larder batch is adding to this file");
    read_done();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

BatchResults::~BatchResults() { ::close(fd_); }

void BatchResults::read_done() {
  std::ifstream file(path_, std::ios::binary);
  std::string text;
  int64_t whole = 0, line = 0;  // bytes and lines that end as lines do
  while (std::getline(file, text) && !file.eof()) {
    const std::string name = str(path_, ": line ", ++line, " is no result");
    const Json result = parse_json(text, name);
    if (!is_result(JsonFields(result, name))) fail(name, " of larder batch; give another file");
    done_.insert(result.at("id").dump());
    whole += static_cast<int64_t>(text.size()) + 1;
  }
  if (file.bad()) fail_io(path_, "cannot be read");
  if (text.empty() || !file.eof()) return;
  // A crash in the middle of a write. What does not begin as a result does is somebody else's.
  if (text.front() != '{')
    fail(path_, ": line ", line + 1, " is no result: it begins with ", in_quotes(text, 20));
  if (::ftruncate(fd_, whole) != 0) fail_io(path_, "the torn last line cannot be cut");
}

void BatchResults::add(const Json& result) {
  // One write a line, so that no other reader sees half of one.
  const std::string line = result.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(fd_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_io(path_, "a result cannot be written");
    done += static_cast<size_t>(count);
  }
}

Json batch_result(const Json& id, int64_t prompt_tokens, std::span<const BatchSample> samples) {
  Json line = {{"id", id}};
  int64_t new_tokens = 0;
  for (const BatchSample& sample : samples) {
    new_tokens += static_cast<int64_t>(sample.result.output_ids.size());
    if (samples.size() > 1)
      line["choices"].push_back(ending(sample));
    else
      line.update(ending(sample));
  }
  if (line.contains("error")) return line;
  line["prompt_tokens"] = prompt_tokens;
  line["new_tokens"] = new_tokens;
  return line;
}

Json batch_error(const Json& id, const std::string& error) {
  return {{"id", id}, {"error", error}};
}

}  // namespace larder::tools
