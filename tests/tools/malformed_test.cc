// What a user may meet: every malformed file and every wrong flag ends `larder generate` with exit
// code 1 or 2 and one clear line that names what is wrong. Runs under the sanitizers too.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/support/command_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

struct Fault {
  std::string name;
  std::string says;                                // must be in the line
  std::function<void(const TempFolder&)> inflict;  // on a good model folder
  std::vector<std::string> flags = {"--prompt-ids", "1,2,3"};
  int code = 2;
};

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

void good_folder(const TempFolder& folder) {
  TinyModel().write(folder.path());
  folder.write(
      "tokenizer.json",
      R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

std::string container(const std::string& header, size_t data_bytes = 0,
                      uint64_t says = UINT64_MAX - 1) {
  const uint64_t length = says == UINT64_MAX - 1 ? header.size() : says;
  return little_endian(length, 8) + header + std::string(data_bytes, '\0');
}

Fault weights(std::string name, std::string says, std::string content) {
  return {std::move(name), std::move(says),
          [content = std::move(content)](const TempFolder& folder) {
            folder.write("model.safetensors", content);
          }};
}

Fault header(std::string name, std::string says, const std::string& json, size_t data_bytes = 8) {
  return weights(std::move(name), std::move(says), container(json, data_bytes));
}

std::string tensor(const std::string& offsets, const std::string& dtype = "\"F32\"",
                   const std::string& shape = "[2]") {
  return R"({"dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "data_offsets": )" + offsets +
         "}";
}

std::vector<Fault> container_faults() {
  const std::string deep(100000, '[');
  return {
      weights("EmptyFile", "model.safetensors", ""),
      weights("SevenBytes", "model.safetensors", "1234567"),
      weights("HeaderPastTheEnd", "header", container("{}", 0, 1000)),
      weights("HeaderOf2To64", "header", container("{}", 0, UINT64_MAX)),
      weights("HeaderAboveTheLimit", "header", container("{}", 0, 100'000'001)),
      weights("HeaderNotUtf8", "UTF-8", container("{\"\xff\": 1}")),
      weights("HeaderIsAList", "model.safetensors", container("[]")),
      weights("NulAfterTheHeader", "model.safetensors", container(std::string("{}\0\0", 4))),
      weights("BytesAfterAnEmptyHeader", "model.safetensors", container("{}", 1)),
      weights("DeepNesting", "model.safetensors", container("{\"a\":" + deep)),
      header("MetadataNotAString", "__metadata__", R"({"__metadata__": {"a": 1}})", 0),
      header("MissingDtype", "\"a\"", R"({"a": {"shape": [2], "data_offsets": [0, 8]}})"),
      header("UnknownDtype", "F31", "{\"a\": " + tensor("[0, 8]", "\"F31\"") + "}"),
      header("ThreeOffsets", "\"a\"", "{\"a\": " + tensor("[0, 4, 8]") + "}"),
      header("OffsetsWithAPoint", "\"a\"", "{\"a\": " + tensor("[0.0, 8.0]") + "}"),
      header("NegativeOffset", "\"a\"", "{\"a\": " + tensor("[-8, 0]") + "}"),
      header("NegativeDimension", "\"a\"", "{\"a\": " + tensor("[0, 8]", "\"F32\"", "[-2]") + "}"),
      header("BeginAfterEnd", "\"a\"", "{\"a\": " + tensor("[8, 0]") + "}"),
      header("PastTheData", "\"a\"", "{\"a\": " + tensor("[0, 8000]", "\"F32\"", "[2000]") + "}"),
      header("DataTooShort", "model.safetensors", "{\"a\": " + tensor("[0, 8]") + "}", 7),
      header("DataTooLong", "model.safetensors", "{\"a\": " + tensor("[0, 8]") + "}", 12),
      header("AHole", "model.safetensors", "{\"a\": " + tensor("[4, 12]") + "}", 12),
      header(
          "Overlap", "model.safetensors",
          "{\"a\": " + tensor("[0, 8]") + ", \"b\": " + tensor("[4, 8]", "\"F32\"", "[1]") + "}"),
      header("TheSameNameTwice", "\"a\"",
             "{\"a\": " + tensor("[0, 8]") + ", \"a\": " + tensor("[0, 8]") + "}"),
      header("ShapeIsNotTheRange", "\"a\"", "{\"a\": " + tensor("[0, 8]", "\"F32\"", "[3]") + "}"),
      header("ProductOverflow", "\"a\"",
             "{\"a\": " + tensor("[0, 0]", "\"F32\"", "[4294967296, 4294967296]") + "}", 0),
      header("ProductOverflowBesideAZero", "\"a\"",
             "{\"a\": " + tensor("[0, 0]", "\"F32\"", "[1099511627776, 1099511627776, 0]") + "}",
             0),
  };
}

// Replaces the single file by an index with this weight_map.
Fault index(std::string name, std::string says, const std::string& map, bool make_first = true) {
  return {std::move(name), std::move(says), [map, make_first](const TempFolder& folder) {
            std::filesystem::rename(folder / "model.safetensors", folder / "first.safetensors");
            if (!make_first) folder.write("first.safetensors", "cut");
            folder.write("model.safetensors.index.json", map);
          }};
}

void bend(const TempFolder& folder, const std::function<void(TinyModel&)>& change) {
  TinyModel tiny;
  change(tiny);
  tiny.write(folder.path());
}

std::vector<Fault> weight_faults() {
  return {
      index(
          "IndexNamesMissingFiles", "second.safetensors",
          R"({"weight_map": {"a": "first.safetensors", "b": "second.safetensors", "c": "third.safetensors"}})"),
      index("IndexLeavesTheFolder", "../", R"({"weight_map": {"a": "../first.safetensors"}})"),
      index("IndexWithAnAbsolutePath", "/etc", R"({"weight_map": {"a": "/etc/passwd"}})"),
      index("IndexIsNotJson", "index.json", R"({"weight_map": )"),
      index("IndexWithoutAMap", "weight_map", "{}"),
      index("AShardCutShort", "first.safetensors", R"({"weight_map": {"a": "first.safetensors"}})",
            false),
      {"NoWeightsAtAll", "model.safetensors",
       [](const TempFolder& f) { std::filesystem::remove(f / "model.safetensors"); }},
      {"AMissingTensor", "model.norm.weight",
       [](const TempFolder& f) {
         bend(f, [](TinyModel& m) { m.tensors.erase("model.norm.weight"); });
       }},
      {"AMisshapenTensor", "lm_head.weight",
       [](const TempFolder& f) {
         bend(f, [](TinyModel& m) {
           m.tensors["lm_head.weight"] = TinyModel::random("x", {3, 3});
         });
       }},
      {"ATensorOfIntegers", "i16",
       [](const TempFolder& f) {
         bend(f, [](TinyModel& m) {
           m.tensors["model.norm.weight"].dtype = DType::kI16;
           m.tensors["model.norm.weight"].bytes.resize(32);
         });
       }},
  };
}

Fault config_text(std::string name, std::string says, std::string text) {
  return {std::move(name), std::move(says),
          [text = std::move(text)](const TempFolder& f) { f.write("config.json", text); }};
}

Fault config_value(const std::string& name, const std::string& key, Json value,
                   std::string says = {}) {
  if (says.empty()) says = key;
  return {name, std::move(says), [key, value = std::move(value)](const TempFolder& f) {
            bend(f, [&](TinyModel& m) { m.config[key] = value; });
          }};
}

std::vector<Fault> config_faults() {
  return {
      {"NoConfig", "config.json",
       [](const TempFolder& f) { std::filesystem::remove(f / "config.json"); }},
      config_text("EmptyConfig", "config.json", ""),
      config_text("TruncatedConfig", "config.json", R"({"architectures": ["LlamaFor)"),
      config_text("ConfigIsAList", "config.json", "[1, 2]"),
      config_text("DeepConfig", "nested", std::string(100000, '[')),
      config_text("DeepObjects", "nested",
                  [] {
                    std::string s;
                    for (int i = 0; i < 50000; ++i) s += "{\"a\":";
                    return s;
                  }()),
      config_text("ConfigOfNuls", "config.json", std::string(100, '\0')),
      config_value("UnknownArchitecture", "architectures", Json::array({"FalconForCausalLM"}),
                   "FalconForCausalLM"),
      config_value("ArchitecturesIsAString", "architectures", "LlamaForCausalLM"),
      config_value("HiddenSizeIsAString", "hidden_size", "16"),
      config_value("HiddenSizeIsNegative", "hidden_size", -16),
      config_value("NoHeads", "num_attention_heads", 0),
      config_value("KeyHeadsThatDoNotDivide", "num_key_value_heads", 3),
      config_value("VocabularyWithoutEnd", "vocab_size", 1e30),
      config_value("LayersIsNull", "num_hidden_layers", nullptr),
      config_value("LayersIsAFraction", "num_hidden_layers", 2.5),
      config_value("EpsilonIsAList", "rms_norm_eps", Json::array({1})),
      config_value("OddHeadDim", "head_dim", 5),
      config_value("UnknownActivation", "hidden_act", "swishish", "swishish"),
      config_value("UnknownRope", "rope_scaling", {{"rope_type", "spiral"}, {"factor", 2.0}},
                   "spiral"),
      config_value("RopeWithoutAFactor", "rope_scaling", {{"rope_type", "linear"}}, "factor"),
      config_value("EosIsAString", "eos_token_id", "</s>"),
      config_value("TooFewLayerTypes", "layer_types", Json::array({"full_attention"})),
      config_value("Quantized", "quantization_config", {{"quant_method", "awq"}}),
  };
}

Fault tokenizer(std::string name, std::string says, std::string text) {
  return {std::move(name),
          std::move(says),
          [text = std::move(text)](const TempFolder& f) { f.write("tokenizer.json", text); },
          {"-p", "ab"}};
}

std::vector<Fault> tokenizer_faults() {
  return {
      {"NoTokenizer",
       "tokenizer.json",
       [](const TempFolder& f) { std::filesystem::remove(f / "tokenizer.json"); },
       {"-p", "ab"}},
      tokenizer("TokenizerIsEmpty", "tokenizer.json", ""),
      tokenizer("TokenizerIsCut", "tokenizer.json",
                R"({"model": {"type": "BPE", "vocab": {"a": 0)"),
      tokenizer("TokenizerIsDeep", "tokenizer.json", std::string(100000, '[')),
      tokenizer(
          "AMergeOfUnknownTokens", "\"z\"",
          R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a z"]}})"),
      tokenizer(
          "ANegativeId", "tokenizer.json",
          R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"),
      tokenizer("AnUnsupportedModel", "WordPiece",
                R"({"added_tokens": [], "model": {"type": "WordPiece", "vocab": {"a": 0}}})"),
      tokenizer("AVocabularyThatIsAList", "vocab",
                R"({"added_tokens": [], "model": {"type": "BPE", "vocab": ["a"], "merges": []}})"),
      {"APromptThatIsNotUtf8", "UTF-8", [](const TempFolder&) {}, {"-p", "a\xff"}},
  };
}

Fault flags(std::string name, std::string says, std::vector<std::string> with, int code = 2) {
  return {std::move(name), std::move(says), [](const TempFolder&) {}, std::move(with), code};
}

std::vector<Fault> flag_faults() {
  const std::string ids = "--prompt-ids";
  return {
      flags("NoPrompt", "prompt", {}),
      flags("TwoPrompts", "one prompt", {ids, "1", "-p", "a"}),
      flags("AnUnknownFlag", "--colour", {ids, "1", "--colour"}),
      flags("AnUnreadablePromptFile", "no/such/file", {"--prompt-file", "no/such/file"}),
      flags("APromptFileThatIsAFolder", "regular file", {"--prompt-file", "."}),
      flags("NegativeNewTokens", "-n -1", {ids, "1", "-n", "-1"}),
      flags("ANumberPast64Bits", "-n", {ids, "1", "-n", "9223372036854775808"}),
      flags("ANumberThatIsNone", "\"many\"", {ids, "1", "-n", "many"}),
      flags("TemperatureNan", "temperature", {ids, "1", "--temperature", "nan"}),
      flags("TemperatureBelowZero", "temperature", {ids, "1", "--temperature", "-1"}),
      flags("TopPAboveOne", "top_p", {ids, "1", "--top-p", "2"}),
      flags("AnUnknownCache", "dynamic", {ids, "1", "--cache", "turbo"}),
      flags("AnUnknownDtype", "i8", {ids, "1", "--dtype", "i8"}),
      flags("AnUnknownAttention", "fused", {ids, "1", "--attention", "sparse"}),
      flags("AnUnknownKernelSet", "reference", {ids, "1", "--kernels", "sse"}),
      flags("NegativeThreads", "-1", {ids, "1", "--threads", "-1"}),
      flags("ALimitThatIsNoNumber", "--memory-limit", {ids, "1", "--memory-limit", "lots"}),
      flags("IdsWithAHole", "--prompt-ids", {ids, "1,,2"}),
      flags("AnIdOutsideTheVocabulary", "32", {ids, "1,32"}),
      flags("AStopThatIsEmpty", "stop", {"-p", "ab", "--stop", ""}),
      flags("TooLittleMemory", "1000", {ids, "1", "--memory-limit", "1000"}, 1),
      flags("AStaticCacheThatIsTooSmall", "max_cache_len is 2",
            {ids, "1,2,3", "--cache", "static", "--max-cache-len", "2"}, 1),
      flags("APromptPastTheContext", "max_position_embeddings 64",
            {ids,
             [] {
               std::string s = "1";
               for (int i = 0; i < 64; ++i) s += ",1";
               return s;
             }()}),
  };
}

std::vector<Fault> all_faults() {
  std::vector<Fault> all;
  for (const auto& list :
       {container_faults(), weight_faults(), config_faults(), tokenizer_faults(), flag_faults()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

class Malformed : public ::testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Generate, Malformed, ::testing::ValuesIn(all_faults()),
                         [](const auto& fault) { return fault.param.name; });

TEST_P(Malformed, EndsWithOneClearLine) {
  const TempFolder folder;
  good_folder(folder);
  GetParam().inflict(folder);
  std::vector<std::string> arguments = {"generate", "-m", folder.path().string(), "-n", "2"};
  const std::vector<std::string>& flags = GetParam().flags;
  if (std::find(flags.begin(), flags.end(), "-n") != flags.end()) arguments.resize(3);
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const CommandResult result = run_larder(arguments);
  EXPECT_EQ(result.code, GetParam().code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("larder: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(GetParam().says), std::string::npos) << result.err;
}

TEST(Generate, TheGoodFolderIsGood) {
  const TempFolder folder;
  good_folder(folder);
  const CommandResult result =
      run_larder({"generate", "-m", folder.path().string(), "--prompt-ids", "1,2,3", "-n", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Generate, AFolderThatIsNotThereIsNamed) {
  const CommandResult result = run_larder({"generate", "-m", "no/such/folder", "-p", "a"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("no/such/folder"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace larder::test
