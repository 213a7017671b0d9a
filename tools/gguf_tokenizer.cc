#include "tools/gguf_tokenizer.h"

#include "larder/base/error.h"
#include "tools/gguf_vocabulary.h"

namespace larder::tools {
namespace {

// U+2581, which SentencePiece writes for a space.
constexpr const char* kSpace = "\xe2\x96\x81";

// The pattern of Llama 3's tokenizer, part of its vocabulary's definition.
constexpr const char* kLlama3Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// The parts of tokenizer.json in which the kinds differ.
// A move of nlohmann's type is noexcept, which the check does not see through its assertions.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct Kind {
  Json normalizer, pre_tokenizer, decoder;
  bool byte_fallback = false, ignore_merges = false;
  bool add_bos = false;     // where the metadata do not say
  bool add_prefix = false;  // SentencePiece's space in front of a text
};

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json sequence(const char* list, Json parts) { return {{"type", "Sequence"}, {list, parts}}; }

Kind byte_level_kind(const GgufFile& file) {
  const std::optional<std::string> pre = file.string("tokenizer.ggml.pre");
  if (!pre) {
    fail_as(ErrorKind::kUnsupported, file.name(),
            ": metadata \"tokenizer.ggml.pre\" is missing, so how text is split is not known");
  }
  Kind kind;
  kind.decoder = {{"type", "ByteLevel"},
                  {"add_prefix_space", true},
                  {"trim_offsets", true},
                  {"use_regex", true}};
  if (*pre == "smollm") {
    const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
    kind.pre_tokenizer = sequence("pretokenizers", Json::array({digits, byte_level(true)}));
  } else if (*pre == "gpt-2" || *pre == "default") {
    kind.pre_tokenizer = byte_level(true);
  } else if (*pre == "llama-bpe") {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", kLlama3Pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    kind.pre_tokenizer = sequence("pretokenizers", Json::array({split, byte_level(false)}));
    kind.ignore_merges = kind.add_bos = true;
  } else {
    fail_as(ErrorKind::kUnsupported, file.name(), ": the pre-tokenizer ", in_quotes(*pre),
            " is not supported (smollm, gpt-2, default, llama-bpe)");
  }
  return kind;
}

Json replace(const char* what, const char* by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}

Kind sentencepiece_kind(const GgufFile& file) {
  Kind kind;
  kind.byte_fallback = kind.add_bos = true;
  kind.add_prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  Json normalizers = Json::array({replace(" ", kSpace)});
  Json decoders =
      Json::array({replace(kSpace, " "), Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}});
  if (kind.add_prefix) {
    normalizers.insert(normalizers.begin(), Json{{"type", "Prepend"}, {"prepend", kSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  kind.normalizer = sequence("normalizers", normalizers);
  kind.decoder = sequence("decoders", decoders);
  return kind;
}

bool is_added(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined ||
         kind == TokenKind::kUnknown;
}

Json added_tokens(const GgufVocabulary& vocabulary) {
  Json list = Json::array();
  for (size_t id = 0; id < vocabulary.kinds.size(); ++id) {
    // An empty text would match everywhere.
    if (!is_added(vocabulary.kinds[id]) || (*vocabulary.tokens)[id].empty()) continue;
    list.push_back({{"id", id},
                    {"content", (*vocabulary.tokens)[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", vocabulary.kinds[id] != TokenKind::kUserDefined}});
  }
  return list;
}

// The token that tokenizer.ggml.NAME_token_id names, or nullopt.
std::optional<std::string> token(const GgufFile& file, const GgufVocabulary& vocabulary,
                                 const char* name) {
  const std::string key = str("tokenizer.ggml.", name, "_token_id");
  const std::optional<int64_t> id = file.integer(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= static_cast<int64_t>(vocabulary.tokens->size())) {
    fail(file.name(), ": metadata ", in_quotes(key), " is ", *id, " of ", vocabulary.tokens->size(),
         " tokens");
  }
  return std::string((*vocabulary.tokens)[static_cast<size_t>(*id)]);
}

Json special(const std::string& text) { return {{"SpecialToken", {{"id", text}, {"type_id", 0}}}}; }

// Puts the tokens of the text's begin and end around it; null when there are none to put.
Json post_processor(const GgufFile& file, const GgufVocabulary& vocabulary, bool bos, bool eos) {
  if (!bos && !eos) return nullptr;
  Json tokens = Json::object();
  const auto named = [&](const char* name) {
    const std::optional<std::string> text = token(file, vocabulary, name);
    if (!text) {
      fail(file.name(), ": a token is to be added, but tokenizer.ggml.", name,
           "_token_id is missing");
    }
    tokens[*text] = {{"id", *text},
                     {"ids", Json::array({vocabulary.ids.at(*text)})},
                     {"tokens", Json::array({*text})}};
    return special(*text);
  };
  const auto around = [&](const char* text, int type) {
    Json list = Json::array();
    if (bos) list.push_back(named("bos"));
    list.push_back({{"Sequence", {{"id", text}, {"type_id", type}}}});
    if (eos) list.push_back(named("eos"));
    return list;
  };
  const Json single = around("A", 0);
  Json pair = single;
  for (Json& part : around("B", 1)) pair.push_back(std::move(part));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

// Written piece by piece: an ordered JSON object of many keys takes quadratic time.
std::string model_text(const GgufVocabulary& vocabulary, const std::vector<MergePair>& merges,
                       const Kind& kind, const std::optional<std::string>& unknown) {
  Json fields = {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", kind.byte_fallback},
                 {"byte_fallback", kind.byte_fallback},
                 {"ignore_merges", kind.ignore_merges}};
  if (kind.byte_fallback && unknown) fields["unk_token"] = *unknown;
  std::string text = fields.dump();
  text.pop_back();
  text += ",\n\"vocab\":{";
  for (size_t id = 0; id < vocabulary.tokens->size(); ++id)
    text += str(id ? ",\n" : "\n", Json((*vocabulary.tokens)[id]).dump(), ":", id);
  text += "},\n\"merges\":[";
  for (size_t i = 0; i < merges.size(); ++i)
    text += str(i ? ",\n" : "\n", Json(str(merges[i].first, " ", merges[i].second)).dump());
  return text + "]}";
}

std::string tokenizer_text(const Kind& kind, const Json& added, const Json& post,
                           const std::string& model) {
  const Json fields = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added},
                       {"normalizer", kind.normalizer},
                       {"pre_tokenizer", kind.pre_tokenizer},
                       {"post_processor", post},
                       {"decoder", kind.decoder}};
  std::string text = fields.dump(2);
  text.resize(text.size() - 2);  // its closing brace and the line's end before it
  return str(text, ",\n  \"model\": ", model, "\n}\n");
}

Json make_config(const GgufFile& file, const GgufVocabulary& vocabulary, int64_t context_length) {
  Json config = Json::object();
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  for (const auto& [key, name] :
       {std::pair("bos_token", "bos"), std::pair("eos_token", "eos"),
        std::pair("pad_token", "padding"), std::pair("unk_token", "unknown")}) {
    if (const auto text = token(file, vocabulary, name)) config[key] = *text;
  }
  config["model_max_length"] = context_length;
  config["clean_up_tokenization_spaces"] = false;
  if (const auto text = file.string("tokenizer.chat_template")) config["chat_template"] = *text;
  return config;
}

}  // namespace

GgufTokenizer read_gguf_tokenizer(const GgufFile& file, int64_t vocab_size,
                                  int64_t context_length) {
  const std::string model = file.string("tokenizer.ggml.model").value_or("");
  if (model != "gpt2" && model != "llama") {
    fail_as(ErrorKind::kUnsupported, file.name(), ": the tokenizer ", in_quotes(model),
            " is not supported (gpt2, llama)");
  }
  const bool bytes = model == "gpt2";
  const Kind kind = bytes ? byte_level_kind(file) : sentencepiece_kind(file);
  const GgufVocabulary vocabulary = read_vocabulary(file, vocab_size);
  const bool has_merges = file.metadata().contains("tokenizer.ggml.merges");
  const std::vector<MergePair> merges =
      bytes || has_merges ? read_merges(file, vocabulary) : merges_from_scores(file, vocabulary);
  const bool bos = file.boolean("tokenizer.ggml.add_bos_token").value_or(kind.add_bos);
  const bool eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(false);
  try {
    GgufTokenizer result;
    result.tokenizer_json =
        tokenizer_text(kind, added_tokens(vocabulary), post_processor(file, vocabulary, bos, eos),
                       model_text(vocabulary, merges, kind, token(file, vocabulary, "unknown")));
    result.tokenizer_config = make_config(file, vocabulary, context_length);
    result.tokenizer_config.dump();  // strings that are no UTF-8 show here
    return result;
  } catch (const Json::exception&) {
    fail(file.name(), ": a token, a merge or the chat template is not valid UTF-8");
  }
}

}  // namespace larder::tools
