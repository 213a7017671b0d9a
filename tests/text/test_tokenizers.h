// Small tokenizers that the tests of this folder share.
#pragma once

#include <string>
#include <string_view>

#include "larder/base/json.h"
#include "larder/base/str.h"
#include "larder/text/byte_level.h"
#include "larder/text/tokenizer.h"
#include "larder/text/utf8.h"

namespace larder {

inline Json added_token(std::string_view content, int id, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// The tokenizer of cases 39 and 40: byte fallback, a mark in front, and 268 <m> added.
inline Json case39_json() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (size_t byte = 0; byte < 256; ++byte)
    vocab[str("<0x", kHex[byte >> 4], kHex[byte & 15], ">")] = 3 + byte;
  int id = 259;
  for (const char* token : {"▁", "a", "b", "c", "ab", "▁a", "▁ab", "bc", "é"}) vocab[token] = id++;
  const Json merges = {"a b", "▁ a", "▁a b", "▁ ab", "b c"};
  const Json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
  const Json marks = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const Json spaces = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  return {{"added_tokens", Json::array({added_token("<m>", 268)})},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, marks}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders", {spaces, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", merges}}}};
}

// Byte-level, one token a byte (ids 0..255), no merges; 256 <m> is special.
inline Json byte_level_json() {
  Json vocab = Json::object();
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string token;
    append_char(token, kByteAlphabet.char_of[byte]);
    vocab[token] = byte;
  }
  return {{"added_tokens", Json::array({added_token("<m>", 256)})},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

inline Tokenizer tokenizer_of(const Json& json) {
  return Tokenizer::from_json(json.dump(), "tokenizer.json");
}

}  // namespace larder
