#include "tools/batch_run.h"

#include "larder/base/error.h"
#include "tools/interrupt.h"

namespace larder::tools {
namespace {

// Enough for the scheduler to choose among; a file may have millions of lines.
constexpr size_t kMostInEngine = 256;

}  // namespace

bool BatchRun::run() {
  fill();
  while (!pending_.empty() && !interrupted()) {
    const bool more = engine_.step();
    write_ended();
    LARDER_ASSERT(more || pending_.empty());
    fill();
    show();
  }
  return !interrupted();
}

void BatchRun::fill() {
  while (!at_end_ && samples_in_engine_ < kMostInEngine && !interrupted()) {
    const std::optional<BatchLine> line = reader_.next();
    if (!line) {
      at_end_ = true;
    } else if (results_.has(line->id)) {
      ++counts_.skipped;
    } else if (!line->error.empty()) {
      fail_line(line->id, line->error);
    } else {
      submit(*line);
    }
  }
}

void BatchRun::submit(const BatchLine& line) {
  EngineRequest request = line.request;
  request.on_finish = [this](const EngineFinish& end) { take(end); };
  const ModelInfo& info = engine_.session().model().info();
  try {
    const int64_t id = engine_.submit(request);
    const auto samples = static_cast<size_t>(request.num_samples);
    samples_in_engine_ += samples;
    pending_[id] = {line.id, static_cast<int64_t>(with_bos(request.request, info).size()), samples,
                    std::vector<BatchSample>(samples)};
  } catch (const Error& error) {
    fail_line(line.id, error.what());
  }
}

void BatchRun::fail_line(const Json& id, const std::string& error) {
  results_.add(batch_error(id, error));
  ++counts_.done;
  ++counts_.failed;
}

// The engine drops what a callback throws, so nothing is written here.
void BatchRun::take(const EngineFinish& end) {
  Pending& pending = pending_.at(end.request);
  pending.samples[static_cast<size_t>(end.sample)] = {end.result, std::string(end.error)};
  --samples_in_engine_;
  if (--pending.left == 0) ended_.push_back(end.request);
}

void BatchRun::write_ended() {
  for (const int64_t id : ended_) {
    const Pending& pending = pending_.at(id);
    const Json result = batch_result(pending.id, pending.prompt_tokens, pending.samples);
    results_.add(result);
    ++counts_.done;
    if (result.contains("error")) ++counts_.failed;
    counts_.prompt_tokens += pending.prompt_tokens;
    for (const BatchSample& sample : pending.samples)
      counts_.new_tokens += static_cast<int64_t>(sample.result.output_ids.size());
    pending_.erase(id);
  }
  ended_.clear();
}

void BatchRun::show() const {
  const EngineStats stats = engine_.stats();
  const double rate = stats.seconds > 0 ? static_cast<double>(stats.new_tokens) / stats.seconds : 0;
  progress_.show(counts_.done + counts_.skipped, str(", ", fixed(rate, 1), " tokens/s"));
}

}  // namespace larder::tools
