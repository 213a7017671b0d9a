#include "tools/speed_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "larder/base/error.h"
#include "tools/interrupt.h"

namespace larder::tools {

int32_t some_id(int64_t i, int64_t vocab) {
  return static_cast<int32_t>((i * 2654435761 + 12345) % vocab);
}

SpeedRun::SpeedRun(Session& session)
    : session_(session), vocab_(session.model().info().vocab_size) {
  if (session.model().info().is_encoder_decoder)
    fail_as(ErrorKind::kUnsupported, session.model().info().architecture,
            " reads a source beside the text; a speed is measured of models that read text alone");
}

// A kind that has rounded or dropped what a shorter row would need refuses to be cut.
void SpeedRun::cut(int64_t length) {
  if (session_.cache().seq_len(0) <= length) return;
  try {
    session_.cache().crop(std::vector<int64_t>{length});
  } catch (const Error&) {
    session_.reset();
  }
}

bool SpeedRun::set_depth(int64_t length) {
  cut(length);
  return feed(length - session_.cache().seq_len(0), kChunk);
}

bool SpeedRun::feed(int64_t count, int64_t chunk) {
  for (int64_t done = 0, n = 0; done < count; done += n) {
    if (interrupted()) return false;
    n = std::min({chunk, count - done, session_.cache().step_limit(0)});
    const int64_t first = session_.cache().seq_len(0);
    ids_.resize(static_cast<size_t>(n));
    position_.resize(static_cast<size_t>(n));
    std::iota(position_.begin(), position_.end(), first);
    for (int64_t i = 0; i < n; ++i) ids_[static_cast<size_t>(i)] = some_id(first + i, vocab_);
    const int32_t q_start[] = {0, static_cast<int32_t>(n)}, slot = 0,
                  last = static_cast<int32_t>(n) - 1;
    const bool wanted = chunk == 1 || done + n == count;
    session_.forward({1, static_cast<int32_t>(n), q_start, position_.data(), &slot, false}, ids_,
                     std::span(&last, wanted ? 1 : 0));
  }
  return true;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

}  // namespace larder::tools
