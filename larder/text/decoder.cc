#include "larder/text/decoder.h"

#include <algorithm>

namespace larder {

// What lies behind a step: the step after it, or the text.
class Decoder::Run::Next : public TokenSink {
 public:
  Next(Run& run, size_t step, std::string& out) : run_(run), step_(step), out_(out) {}
  void put(std::string_view token) override {
    if (step_ == run_.steps_.size()) {
      out_.append(token);
    } else {
      Next next(run_, step_ + 1, out_);
      run_.steps_[step_]->take(token, next);
    }
  }

 private:
  Run& run_;
  size_t step_;
  std::string& out_;
};

void Decoder::Run::take(std::string_view token, std::string& out) {
  Next(*this, 0, out).put(token);
}

void Decoder::Run::finish(std::string& out) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    Next next(*this, i + 1, out);
    steps_[i]->finish(next);
  }
}

bool Decoder::Run::has_half_character() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const auto& step) { return step->has_half_character(); });
}

Decoder::Decoder(const Json* spec, const std::string& what) {
  StepList steps;
  if (!spec || spec->is_null()) {
    steps.makers.push_back(make_join_spaces);
  } else {
    read_decode_steps(*spec, what, steps);
  }
  makers_ = std::move(steps.makers);
}

Decoder::Run Decoder::start() const {
  Run run;
  for (const StepMaker& make : makers_) run.steps_.push_back(make());
  return run;
}

}  // namespace larder
