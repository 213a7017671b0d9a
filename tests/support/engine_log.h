// What the callbacks of an engine's requests were told.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "larder/generate/engine.h"

namespace larder::test {

class EngineLog {
 public:
  struct Sample {
    std::vector<int32_t> tokens;  // as they came
    std::string text;
    int ends = 0;
    Result result;  // as it was given at the end
    std::string error;
  };
  // The request with callbacks that write into this log, which must outlive its run.
  EngineRequest watch(Request request) {
    EngineRequest watched;
    watched.request = std::move(request);
    watched.on_token = [this](const EngineToken& event) {
      Sample& sample = samples_[{event.request, event.sample}];
      if (event.token >= 0) sample.tokens.push_back(event.token);
      sample.text.append(event.text);
      return true;
    };
    watched.on_finish = [this](const EngineFinish& event) {
      Sample& sample = samples_[{event.request, event.sample}];
      ++sample.ends;
      sample.result = event.result;
      sample.error = event.error;
    };
    return watched;
  }
  const Sample& of(int64_t request, int32_t sample = 0) { return samples_[{request, sample}]; }

 private:
  std::map<std::pair<int64_t, int32_t>, Sample> samples_;
};

}  // namespace larder::test
