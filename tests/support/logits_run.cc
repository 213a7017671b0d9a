#include "tests/support/logits_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "larder/base/str.h"
#include "tests/support/source_dir.h"

namespace larder::test {

std::vector<std::vector<float>> all_logits(Session& session, const std::vector<Ids>& prompts,
                                           int64_t chunk) {
  session.reset();
  std::vector<std::vector<float>> result(prompts.size());
  size_t longest = 0;
  for (const Ids& prompt : prompts) longest = std::max(longest, prompt.size());
  for (int64_t at = 0; at < static_cast<int64_t>(longest); at += chunk) {
    std::vector<int32_t> ids, slot, q_start{0}, rows;
    std::vector<int64_t> position;
    for (size_t r = 0; r < prompts.size(); ++r) {
      const auto length = static_cast<int64_t>(prompts[r].size());
      for (int64_t i = at; i < std::min(at + chunk, length); ++i) {
        ids.push_back(prompts[r][static_cast<size_t>(i)]);
        position.push_back(i);
      }
      if (static_cast<int32_t>(ids.size()) == q_start.back()) continue;
      slot.push_back(static_cast<int32_t>(r));
      q_start.push_back(static_cast<int32_t>(ids.size()));
    }
    rows.resize(ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    const Step step{static_cast<int32_t>(slot.size()),
                    static_cast<int32_t>(ids.size()),
                    q_start.data(),
                    position.data(),
                    slot.data(),
                    false};
    const TensorView logits = session.forward(step, ids, rows);
    const int64_t vocab = logits.shape[1];
    for (size_t b = 0; b < slot.size(); ++b) {
      const float* from = logits.as<float>() + q_start[b] * vocab;
      result[static_cast<size_t>(slot[b])].insert(result[static_cast<size_t>(slot[b])].end(), from,
                                                  from + (q_start[b + 1] - q_start[b]) * vocab);
    }
  }
  return result;
}

Ids some_ids(int64_t count, int64_t vocab, uint64_t seed) {
  std::mt19937_64 engine(seed);
  Ids ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(engine() % static_cast<uint64_t>(vocab));
  return ids;
}

std::string toy_folder(const std::string& name) { return source_path("models/toy/" + name); }

bool same_bits(std::span<const float> a, std::span<const float> b, std::string& where) {
  if (a.size() != b.size()) {
    where = str(a.size(), " logits against ", b.size());
    return false;
  }
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return true;
  const auto part = std::ranges::mismatch(
      a, b, [](float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0; });
  where = str("logit ", part.in1 - a.begin(), " is ", *part.in1, " against ", *part.in2);
  return false;
}

}  // namespace larder::test
