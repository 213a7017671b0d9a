// The output of `larder batch`: one result a line, in the order in which requests end.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <unordered_set>

#include "larder/base/json.h"
#include "larder/generate/row_output.h"

namespace larder::tools {

// A file that results are added to, one whole line at a time, for one process at a time. What it
// holds from an earlier run stays, but for a last line that was torn off, which is cut.
class BatchResults {
 public:
  // Makes the file where there is none. Throws Error for a file that holds anything but results,
  // with nothing changed, and for one that another process is adding to.
  explicit BatchResults(const std::filesystem::path& path);
  ~BatchResults();
  BatchResults(const BatchResults&) = delete;
  BatchResults& operator=(const BatchResults&) = delete;

  // Whether the file had a result of that id when it was opened.
  bool has(const Json& id) const { return done_.contains(id.dump()); }
  // In the file when it returns. Throws Error(kIo).
  void add(const Json& result);

 private:
  void read_done();

  std::string path_;
  int fd_ = -1;
  std::unordered_set<std::string> done_;  // ids as JSON
};

// How one sample of a request ended.
struct BatchSample {
  Result result;
  std::string error;  // why, where it failed
};

// The result line of a request whose samples have all ended; of several, a list of `choices`.
Json batch_result(const Json& id, int64_t prompt_tokens, std::span<const BatchSample> samples);
Json batch_error(const Json& id, const std::string& error);

}  // namespace larder::tools
