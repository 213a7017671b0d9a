// The requests of a file through an engine, and their results into another file.
#pragma once

#include <unordered_map>
#include <vector>

#include "larder/generate/engine.h"
#include "tools/batch_requests.h"
#include "tools/batch_results.h"
#include "tools/progress_bar.h"

namespace larder::tools {

struct BatchCounts {
  int64_t done = 0;     // requests with a result of this run
  int64_t failed = 0;   // of those, with an error
  int64_t skipped = 0;  // that had a result before
  int64_t prompt_tokens = 0, new_tokens = 0;
};

// All must outlive it; nobody else may submit to the engine.
class BatchRun {
 public:
  BatchRun(Engine& engine, BatchReader& reader, BatchResults& results, ProgressBar& progress)
      : engine_(engine), reader_(reader), results_(results), progress_(progress) {}

  // To the end of the file. False when the user interrupted it: then what had ended is in the
  // results, and the rest is as if it had never begun.
  bool run();
  const BatchCounts& counts() const { return counts_; }

 private:
  struct Pending {
    Json id;
    int64_t prompt_tokens = 0;
    size_t left = 0;  // samples that have not ended
    std::vector<BatchSample> samples;
  };
  void fill();
  void submit(const BatchLine& line);
  void fail_line(const Json& id, const std::string& error);
  void take(const EngineFinish& end);
  void write_ended();
  void show() const;

  Engine& engine_;
  BatchReader& reader_;
  BatchResults& results_;
  ProgressBar& progress_;
  std::unordered_map<int64_t, Pending> pending_;  // by the engine's id
  std::vector<int64_t> ended_;                    // ids whose samples have all ended
  size_t samples_in_engine_ = 0;
  bool at_end_ = false;
  BatchCounts counts_;
};

}  // namespace larder::tools
