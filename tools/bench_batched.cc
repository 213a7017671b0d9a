#include "tools/bench_batched.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/coded_block.h"
#include "tools/interrupt.h"
#include "tools/speed_run.h"

namespace larder::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kTokensPerStep = 2048;  // llama-batched-bench's n_batch

struct Test {
  int64_t pp, tg, pl;
  // Steps in which prompts are fed, at most. Sequences whose prompt is through decode beside those
  // that are not, so they come so many tokens further.
  int64_t prompt_steps;
  int64_t longest() const { return pp + prompt_steps + tg + 1; }  // tokens of a sequence
  std::string name() const { return str("-p ", pp, " -n ", tg, " -b ", pl); }
};

struct Seconds {
  double prompt = 0, generation = 0;
};

std::vector<Test> plan(const BatchedBench& bench, const std::vector<int64_t>& n_prompt,
                       const std::vector<int64_t>& n_gen, int64_t per_step) {
  std::vector<Test> tests;
  for (const int64_t pp : n_prompt) {
    if (pp < 1) fail("-p ", pp, " must be at least 1 with --batched");
    if (bench.shared_prefix < 0 || bench.shared_prefix > pp)
      fail("--shared-prefix ", bench.shared_prefix, " must be 0 to the ", pp,
           " tokens of a prompt");
    for (const int64_t tg : n_gen) {
      if (tg < 1) fail("-n ", tg, " must be at least 1 with --batched");
      for (const int64_t pl : bench.sequences) {
        if (pl < 1 || pl >= per_step)
          fail("-b ", pl, " must be at least 1 and below the ", per_step, " tokens of a step");
        // Those that wait for a shared prefix to be computed begin a step later.
        tests.push_back({pp, tg, pl, (pp * pl) / (per_step - pl) + 2});
      }
    }
  }
  if (tests.empty()) fail("nothing to measure: give -p, -n and -b");
  return tests;
}

void check_context(const std::vector<Test>& tests, int64_t context) {
  for (const Test& test : tests) {
    if (test.longest() > context)
      fail(test.name(), " needs ", test.longest(),
           " tokens a sequence, but the model's context (max_position_embeddings) is ", context);
  }
}

// Tokens of whole blocks, for all sequences of the largest test.
int64_t pool_tokens(const std::vector<Test>& tests, int64_t block_size) {
  int64_t most = 0;
  for (const Test& test : tests) most = std::max(most, test.pl * (test.longest() + block_size));
  return most;
}

class Runner {
 public:
  Runner(Engine& engine, int64_t shared_prefix)
      : engine_(engine),
        shared_prefix_(shared_prefix),
        vocab_(engine.session().model().info().vocab_size) {}

  // nullopt when interrupted. Throws Error when the pool is too small to hold all sequences.
  std::optional<Seconds> time(const Test& test) {
    const int64_t preempted = engine_.stats().preemptions;
    ++runs_;
    const std::vector<int64_t> ids = submit(test);
    Seconds seconds;
    const auto start = Clock::now();
    bool going = step_until([&](const EngineStats& now, int64_t) {
      return now.waiting + now.preempted + now.in_prompt == 0;
    });
    const auto between = Clock::now();
    going = going && step_until([&](const EngineStats&, int64_t done) { return done == test.tg; });
    seconds = {since(start, between), since(between, Clock::now())};
    const int64_t running = engine_.stats().decoding;
    for (const int64_t id : ids) engine_.cancel(id);
    if (!going) return std::nullopt;
    if (running < test.pl || engine_.stats().preemptions > preempted)
      fail_as(ErrorKind::kNoRoom, "-p ", test.pp, " -b ", test.pl,
              ": the pool does not hold all sequences at once; give more --blocks");
    return seconds;
  }

 private:
  static double since(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  std::vector<int64_t> submit(const Test& test) {
    std::vector<int64_t> ids;
    for (int64_t sequence = 0; sequence < test.pl; ++sequence) {
      EngineRequest request;
      request.request.prompt_ids = prompt(test.pp, sequence);
      request.request.max_new_tokens = test.prompt_steps + test.tg + 1;
      ids.push_back(engine_.submit(request));
    }
    return ids;
  }

  // Other ids in every run and, behind the shared ones, in every sequence: no prefix cache knows
  // more of them than it shall.
  std::vector<int32_t> prompt(int64_t length, int64_t sequence) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t own = i < shared_prefix_ ? 0 : sequence + 1;
      ids.push_back(some_id((runs_ * 977 + own) * 8191 + i, vocab_));
    }
    return ids;
  }

  // False when the user interrupted it.
  template <class Done>
  bool step_until(const Done& done) {
    for (int64_t steps = 0; !done(engine_.stats(), steps); ++steps) {
      if (interrupted()) return false;
      if (!engine_.step()) return true;
    }
    return true;
  }

  Engine& engine_;
  const int64_t shared_prefix_, vocab_;
  int64_t runs_ = 0;
};

int64_t tokens_of_pool(const Engine& engine) {
  const Cache& cache = engine.session().cache();
  const int32_t shared = cache.kv(0).shared_block_size();  // 0: quantized blocks, all of one size
  return engine.pool().num_blocks() / cache.num_layers() * (shared > 0 ? shared : kCodedBlock);
}

Json result_of(const Test& test, const std::vector<Seconds>& samples, const BatchedBench& bench,
               const Engine& engine, int64_t per_step) {
  std::vector<double> prompt, generation;
  for (const Seconds& seconds : samples) {
    prompt.push_back(seconds.prompt);
    generation.push_back(seconds.generation);
  }
  const double t_pp = median(prompt), t_tg = median(generation), t = t_pp + t_tg;
  const int64_t n_kv = test.pl * (test.pp + test.tg);
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  const Session& session = engine.session();
  return {{"n_kv_max", tokens_of_pool(engine)},
          {"n_batch", per_step},
          {"n_ubatch", per_step},
          {"is_pp_shared", bench.shared_prefix == test.pp ? 1 : 0},
          {"shared_prefix", bench.shared_prefix},
          {"n_threads", const_cast<Session&>(session).exec().threads.size()},
          {"pp", test.pp},
          {"tg", test.tg},
          {"pl", test.pl},
          {"n_kv", n_kv},
          {"t_pp", t_pp},
          {"speed_pp", rate(test.pl * test.pp, t_pp)},
          {"t_tg", t_tg},
          {"speed_tg", rate(test.pl * test.tg, t_tg)},
          {"t", t},
          {"speed", rate(n_kv, t)}};
}

void print_head(bool json) {
  if (json) return;
  std::cout << "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |\n"
               "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
            << std::endl;
}

// As soon as it is known: a run of many sequences takes its time.
void print(const Json& row, bool json) {
  if (json) {
    std::cout << row.dump() << std::endl;
    return;
  }
  for (const char* key : {"pp", "tg", "pl", "n_kv"})
    std::cout << str("| ", row.at(key).get<int64_t>(), " ");
  for (const auto& [key, decimals] : {std::pair{"t_pp", 3},
                                      {"speed_pp", 2},
                                      {"t_tg", 3},
                                      {"speed_tg", 2},
                                      {"t", 3},
                                      {"speed", 2}})
    std::cout << str("| ", fixed(row.at(key), decimals), " ");
  std::cout << "|" << std::endl;
}

}  // namespace

int run_batched(const BatchedBench& bench, const ModelFlags& model,
                const std::vector<int64_t>& n_prompt, const std::vector<int64_t>& n_gen) {
  bench.engine.check(model);
  const int64_t per_step = bench.engine.max_tokens_per_step.value_or(kTokensPerStep);
  const std::vector<Test> tests = plan(bench, n_prompt, n_gen, per_step);
  catch_interrupts();
  LoadedModel loaded(model);
  check_context(tests, loaded.model()->info().max_position_embeddings);
  EngineOptions options =
      bench.engine.options(loaded, pool_tokens(tests, bench.engine.block_size.value_or(64)));
  options.scheduler.max_tokens_per_step = per_step;
  options.scheduler.max_running = static_cast<int32_t>(std::ranges::max(bench.sequences));
  options.scheduler.safety_margin = 0;  // the pool holds all of them to their end
  const auto engine = bench.engine.make(loaded, std::move(options), bench.shared_prefix > 0);

  Runner runner(*engine, bench.shared_prefix);
  print_head(bench.json);
  bool warm = false;
  for (const Test& test : tests) {
    if (!warm && !runner.time({test.pp, 1, test.pl, test.prompt_steps})) return kInterrupted;
    warm = true;
    std::vector<Seconds> samples;
    for (int64_t run = 0; run < bench.repetitions; ++run) {
      const std::optional<Seconds> seconds = runner.time(test);
      if (!seconds) return kInterrupted;
      samples.push_back(*seconds);
    }
    print(result_of(test, samples, bench, *engine, per_step), bench.json);
  }
  return 0;
}

}  // namespace larder::tools
