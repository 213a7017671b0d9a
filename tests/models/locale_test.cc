// Numbers in configurations are read and reported alike in every locale.
#include <gtest/gtest.h>

#include <clocale>
#include <locale>
#include <string>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/models/decoder_config.h"

namespace larder {
namespace {

class GermanNumbers : public std::numpunct<char> {
 protected:
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// Puts both locales, C's and C++'s, back as they were.
class LocaleGuard {
 public:
  LocaleGuard() : c_(std::setlocale(LC_ALL, nullptr)) {}
  ~LocaleGuard() {
    std::locale::global(cpp_);
    std::setlocale(LC_ALL, c_.c_str());
  }
  LocaleGuard(const LocaleGuard&) = delete;
  LocaleGuard& operator=(const LocaleGuard&) = delete;

 private:
  std::locale cpp_;
  std::string c_;
};

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.5,
    "rope_scaling": {"type": "linear", "factor": 8.5}})";

void expect_same_numbers() {
  const auto config = read_decoder_config(parse_json(kConfig, "config.json"), "config.json");
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.rms_norm_eps, 1e-05);
  EXPECT_EQ(config.rope.theta, 10000.5);
  EXPECT_EQ(config.rope.factor, 8.5);
  Json wrong = parse_json(kConfig, "config.json");
  wrong["vocab_size"] = 32000.5;
  wrong["hidden_size"] = 1234567890123;
  wrong["rms_norm_eps"] = -1234.5;
  try {
    read_decoder_config(wrong, "config.json");
    FAIL();
  } catch (const Error& error) {
    const std::string line = error.what();
    for (const char* number : {"found 32000.5", "found 1234567890123", "found -1234.5"})
      EXPECT_NE(line.find(number), std::string::npos) << line;
  }
}

TEST(Case37, ConfigNumbersWithADecimalCommaInTheCppLocale) {
  const LocaleGuard guard;
  std::locale::global(std::locale(std::locale::classic(), new GermanNumbers));
  expect_same_numbers();
}

TEST(Case37, ConfigNumbersWithADecimalCommaInTheCLocale) {
  const LocaleGuard guard;
  if (!std::setlocale(LC_ALL, "de_DE.UTF-8")) GTEST_SKIP() << "no locale de_DE.UTF-8 here";
  expect_same_numbers();
}

}  // namespace
}  // namespace larder
