// Walks a folder of reference results and registers each case as a test of its own. The folder is
// tests/data/conformance, or the environment variable LARDER_CONFORMANCE_DIR. Names, shapes and
// counts of cases are whatever is found.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "larder/base/error.h"
#include "larder/models/family.h"
#include "tests/support/attention_conformance.h"
#include "tests/support/cache_conformance.h"
#include "tests/support/continuous_conformance.h"
#include "tests/support/forward_conformance.h"
#include "tests/support/generate_conformance.h"
#include "tests/support/logits_conformance.h"
#include "tests/support/paged_conformance.h"
#include "tests/support/quantized_conformance.h"
#include "tests/support/quantizer_conformance.h"
#include "tests/support/sanitized.h"
#ifdef LARDER_HAS_TEXT
#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_conformance.h"
#endif

namespace larder::test {
namespace {

namespace fs = std::filesystem;

// What the cases share: loaded models, and the worst ratio of each kind.
class Suite {
 public:
  explicit Suite(fs::path root) : root_(std::move(root)) {}

  const fs::path& root() const { return root_; }
  std::shared_ptr<const Model> model(const std::string& name) {
    auto& loaded = models_[name];
    if (!loaded) loaded = Model::load(root_ / "models" / name, DType::kF32, host_);
    return loaded;
  }
  // The reason why a model cannot run here; empty when it can.
  std::string model_needs(const std::string& name) const {
    const fs::path file = root_ / "models" / name / "config.json";
    const Json config = parse_json(read_file(file), file.string());
    std::string architecture = config.at("architectures").at(0);
    if (find_family(architecture)) return "";
    for (const Architecture& other : architectures())
      if (architecture == other.name) return "";
    return architecture;
  }
  size_t next_case() { return cases_++; }
  HostAllocator& host() { return host_; }
  void worst(const std::string& kind, double ratio) {
    worst_[kind] = std::max(worst_[kind], ratio);
  }
  void report() const {
    for (const auto& [kind, ratio] : worst_) {
      std::printf("worst ratio of %s: %s of what atol and rtol allow\n", kind.c_str(),
                  fixed(ratio, 4).c_str());
    }
  }

 private:
  fs::path root_;
  HostAllocator host_;
  std::map<std::string, std::shared_ptr<const Model>> models_;
  std::map<std::string, double> worst_;
  size_t cases_ = 0;
};

void expect_clean(Suite& suite, const std::string& kind, const std::string& how,
                  const Comparison& result) {
  suite.worst(kind, result.worst);
  for (const std::string& mismatch : result.mismatches) ADD_FAILURE() << how << ": " << mismatch;
}

void run_forward(Suite& suite, const ConformanceCase& test) {
  const Json& json = test.json();
  const std::string name = json.at("model");
  if (const std::string needs = suite.model_needs(name); !needs.empty())
    GTEST_SKIP() << "needs " << needs;
  const bool quantized = json.at("mode") == "quantized";
  const auto run = [&](const char* cache, AttentionKind attention, const Kernels* set) {
    SessionOptions options{cache, DType::kF32, 512, attention, 2, set->name};
    if (quantized) options.cache_config = json.at("cache_config").dump();
    Session session(suite.model(name), options, suite.host());
    Comparison result{json.at("atol"), json.at("rtol"), 0, {}};
    check_forward_case(test, session, result);
    const bool fused = attention == AttentionKind::kFused;
    expect_clean(suite, "forward", str(cache, ", ", fused ? "fused, " : "eager, ", set->name),
                 result);
  };
  const char* growing = quantized ? "quantized" : "dynamic";
  for (const Kernels* set : available_kernel_sets()) run(growing, AttentionKind::kFused, set);
  run(growing, AttentionKind::kEager, &choose_kernels());
  if (quantized) return;
  if (suite.model(name)->info().is_encoder_decoder)
    run("encoder_decoder", AttentionKind::kFused, &choose_kernels());
  run("static", AttentionKind::kFused, &choose_kernels());
  run("static", AttentionKind::kEager, &choose_kernels());
  run("offloaded", AttentionKind::kFused, &choose_kernels());
  run("paged", AttentionKind::kFused, &choose_kernels());
}

// The kinds that a generate case names; all that keep what they are given where it names none.
std::set<std::string> lossless_caches(const Json& json) {
  std::set<std::string> known, named;
  for (const std::string& kind : CacheRegistry().names()) known.insert(kind);
  const Json all = {nullptr,          "dynamic_full",     "static",
                    "sliding_window", "hybrid",           "hybrid_chunked",
                    "offloaded",      "offloaded_static", "offloaded_hybrid",
                    "mamba",          "recurrent",        "paged"};
  for (const Json& cache : json.value("cache_implementations", all)) {
    const std::string kind = cache.is_null() ? "dynamic" : cache.get<std::string>();
    if (known.contains(kind)) named.insert(kind);
  }
  return named;
}

void run_generate(Suite& suite, const ConformanceCase& test) {
  const Json& json = test.json();
  const std::string name = json.at("model");
  if (const std::string needs = suite.model_needs(name); !needs.empty())
    GTEST_SKIP() << "needs " << needs;
  const std::set<std::string> caches = lossless_caches(json);
  // A sanitizer looks at a third of the combinations, at another third in the next case.
  size_t turn = suite.next_case();
  for (const std::string& cache : caches) {
    for (const AttentionKind attention : {AttentionKind::kFused, AttentionKind::kEager}) {
      if (kSanitized && ++turn % 3 != 0) continue;
      SessionOptions options{cache, DType::kF32, generate_case_length(json), attention, 2, {}};
      options.rollback = 16;
      Session session(suite.model(name), options, suite.host());
      std::unique_ptr<Session> assistant;
      if (json.contains("assistant_model"))
        assistant = std::make_unique<Session>(suite.model(json.at("assistant_model")), options,
                                              suite.host());
      Comparison result{json.value("scores_atol", 0.0), 0, 0, {}};
      check_generate_case(test, session, assistant.get(), result);
      expect_clean(suite, "generate", cache, result);
    }
  }
}

void run_continuous(Suite& suite, const ConformanceCase& test) {
  const std::string name = test.json().at("model");
  if (const std::string needs = suite.model_needs(name); !needs.empty())
    GTEST_SKIP() << "needs " << needs;
  Comparison result;
  check_continuous_case(test, suite.model(name), suite.host(), result);
  expect_clean(suite, "continuous", "engine", result);
}

void run_cache(Suite& suite, const ConformanceCase& test) {
  if (test.json().at("class") == "QuantizedCache") {
    Comparison result;
    check_quantized_cache_case(test, result);
    return expect_clean(suite, "cache", "quantized", result);
  }
  if (const std::string needs = cache_case_needs(test.json()); !needs.empty())
    GTEST_SKIP() << "needs " << needs;
  Comparison result;
  check_cache_case(test, result);
  expect_clean(suite, "cache", "padded edge", result);
}

void run_quantizer(Suite& suite, const ConformanceCase& test) {
  Comparison result;
  check_quantizer_case(test, result);
  expect_clean(suite, "quantizer", "flat tensor", result);
}

void run_attention(const ConformanceCase& test) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const std::string& mismatch :
         check_attention_case(test.folder(), *set, AttentionKind::kFused))
      ADD_FAILURE() << set->name << ": " << mismatch;
  }
  for (const std::string& mismatch :
       check_attention_case(test.folder(), choose_kernels(), AttentionKind::kEager))
    ADD_FAILURE() << "eager: " << mismatch;
}

void run_paged(Suite& suite, const ConformanceCase& test) {
  const auto run = [&](const Kernels& set, AttentionKind kind, const std::string& how) {
    Comparison result{test.json().at("atol"), test.json().at("rtol"), 0, {}};
    check_paged_case(test, set, kind, result);
    expect_clean(suite, "paged", how, result);
  };
  for (const Kernels* set : available_kernel_sets())
    run(*set, AttentionKind::kFused, str("fused, ", set->name));
  run(choose_kernels(), AttentionKind::kEager, "eager");
}

void run_case(Suite& suite, const fs::path& folder) {
  const ConformanceCase test(folder);
  const std::string kind = test.kind();
  if (kind == "forward") return run_forward(suite, test);
  if (kind == "generate") return run_generate(suite, test);
  if (kind == "continuous") return run_continuous(suite, test);
  if (kind == "cache") return run_cache(suite, test);
  if (kind == "attention") return run_attention(test);
  if (kind == "quantizer") return run_quantizer(suite, test);
  if (kind == "paged") return run_paged(suite, test);
  if (kind == "logits") {
    for (const std::string& mismatch : check_logits_case(folder)) ADD_FAILURE() << mismatch;
    return;
  }
  GTEST_SKIP() << "needs the kind " << kind;
}

void run_tokenizer(const fs::path& folder) {
#ifdef LARDER_HAS_TEXT
  const Json json = parse_json(read_file(folder / "tokenizer.json"), folder.string());
  const std::string model = json.at("model").value("type", "BPE");
  if (model != "BPE") GTEST_SKIP() << "needs the tokenizer model " << model;
  for (const std::string& mismatch : check_tokenizer_folder(folder)) ADD_FAILURE() << mismatch;
#else
  GTEST_SKIP() << "built without text: " << folder;
#endif
}

class CaseTest : public ::testing::Test {
 public:
  explicit CaseTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override {
    try {
      body_();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

 private:
  std::function<void()> body_;
};

void register_case(const std::string& kind, const fs::path& folder, std::function<void()> body) {
  ::testing::RegisterTest(
      ("Conformance_" + kind).c_str(), folder.filename().c_str(), nullptr, nullptr, __FILE__,
      __LINE__, [body = std::move(body)]() -> ::testing::Test* { return new CaseTest(body); });
}

int register_all(Suite& suite) {
  int count = 0;
  std::set<fs::path> folders;
  for (const auto& entry : fs::recursive_directory_iterator(suite.root())) {
    const std::string file = entry.path().filename();
    if (file == "case.json" || file == "cases.json") folders.insert(entry.path());
  }
  for (const fs::path& file : folders) {
    const fs::path folder = file.parent_path();
    const std::string kind = folder.parent_path().filename();
    ++count;
    if (file.filename() == "cases.json") {
      register_case(kind, folder, [folder] { run_tokenizer(folder); });
    } else {
      register_case(kind, folder, [&suite, folder] { run_case(suite, folder); });
    }
  }
  return count;
}

}  // namespace
}  // namespace larder::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* elsewhere = std::getenv("LARDER_CONFORMANCE_DIR");
  const std::filesystem::path root =
      elsewhere ? elsewhere : larder::test::source_path("tests/data/conformance");
  larder::test::Suite suite(root);
  if (!std::filesystem::is_directory(root) || larder::test::register_all(suite) == 0) {
    std::fprintf(stderr, "no conformance cases in %s\n", root.c_str());
    return 1;
  }
  const int status = RUN_ALL_TESTS();
  suite.report();
  return status;
}
