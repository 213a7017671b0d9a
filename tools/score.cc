// larder score: how likely a model finds a text.
#include <cmath>
#include <iostream>
#include <numeric>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/text/tokenizer.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"

namespace larder::tools {
namespace {

// Logits of a chunk are [kChunk, vocab_size] f32, which is what bounds the chunk.
constexpr int64_t kChunk = 64;

struct Flags {
  ModelFlags model;
  std::string file;
  bool json = false;
};

// -log softmax(logits)[target], summed in double.
double negative_log_likelihood(const float* logits, int64_t vocab, int32_t target) {
  float most = logits[0];
  for (int64_t i = 1; i < vocab; ++i) most = std::max(most, logits[i]);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - most);
  return most + std::log(sum) - logits[target];
}

// The sum over all ids of a window but its first. False when interrupted.
bool score_window(Session& session, std::span<const int32_t> ids, double& sum) {
  session.reset();
  const auto length = static_cast<int64_t>(ids.size());
  std::vector<int64_t> position(kChunk);
  std::vector<int32_t> rows(kChunk);
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t at = 0; at < length - 1; at += kChunk) {
    if (interrupted()) return false;
    const auto n = static_cast<int32_t>(std::min(kChunk, length - 1 - at));
    std::iota(position.begin(), position.end(), at);
    const int32_t q_start[] = {0, n}, slot = 0;
    const TensorView logits =
        session.forward({1, n, q_start, position.data(), &slot, false},
                        ids.subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
                        std::span(rows).first(static_cast<size_t>(n)));
    const int64_t vocab = logits.shape[1];
    for (int32_t i = 0; i < n; ++i) {
      sum += negative_log_likelihood(logits.as<float>() + i * vocab, vocab,
                                     ids[static_cast<size_t>(at + i + 1)]);
    }
  }
  return true;
}

int run(const Flags& flags) {
  catch_interrupts();
  const std::string text = read_file(flags.file);
  LoadedModel loaded(flags.model);
  const std::vector<int32_t> ids = Tokenizer::load(flags.model.model).encode(text, true);
  if (ids.size() < 2) fail(flags.file, " has ", ids.size(), " tokens; a score needs at least 2");
  const int64_t context = loaded.model()->info().max_position_embeddings;
  const auto session = loaded.session(std::min<int64_t>(context, static_cast<int64_t>(ids.size())));
  const int64_t window =
      session->cache().max_len() > 0 ? std::min(context, session->cache().max_len()) : context;
  double sum = 0;
  int64_t scored = 0;
  for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(window)) {
    const auto part = std::span(ids).subspan(at).first(
        std::min<size_t>(ids.size() - at, static_cast<size_t>(window)));
    if (!score_window(*session, part, sum)) return kInterrupted;
    scored += static_cast<int64_t>(part.size()) - 1;
  }
  const double mean = sum / static_cast<double>(scored);
  if (flags.json) {
    const Json json = {{"tokens", ids.size()},
                       {"scored_tokens", scored},
                       {"mean_nll", mean},
                       {"perplexity", std::exp(mean)}};
    std::cout << json.dump(2) << std::endl;
  } else {
    std::cout << str(ids.size(), " tokens, ", scored, " scored: mean negative log-likelihood ",
                     fixed(mean, 6), ", perplexity ", fixed(std::exp(mean), 4))
              << std::endl;
  }
  return 0;
}

}  // namespace

void add_score(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app =
      *parent.add_subcommand("score", "Mean negative log-likelihood and perplexity of a text");
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(app);
  app.add_option("file", flags->file, "The text")->type_name("FILE")->required();
  app.add_flag("--json", flags->json,
               "One JSON object: tokens, scored_tokens, mean_nll, perplexity");
  app.footer(
      "Every token after the first is scored, given all before it. A text longer than the model's "
      "context is cut into\n"
      "windows of that length, each scored alone.\n\nExample:\n  larder score -m "
      "models/toy/toy-llama README.md");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
