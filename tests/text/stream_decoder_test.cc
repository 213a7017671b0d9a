#include "larder/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/text/test_tokenizers.h"

namespace larder {
namespace {

using Ids = std::vector<int32_t>;
using Pieces = std::vector<std::string>;

Pieces stream(const Tokenizer& tokenizer, const Ids& ids, const StreamOptions& options = {}) {
  StreamDecoder decoder(tokenizer, options);
  Pieces pieces;
  for (const int32_t id : ids) pieces.push_back(decoder.push(id));
  pieces.push_back(decoder.finish());
  return pieces;
}

TEST(Case40, PiecesAreWholeCharacters) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  const Ids ids = {264, 243, 162, 155, 131, 261};
  EXPECT_EQ(tokenizer.encode("a😀b", false), ids);
  EXPECT_EQ(stream(tokenizer, ids), (Pieces{"a", "", "", "", "😀", "b", ""}));
}

TEST(Case40, UnfinishedBytesComeOutAtTheEnd) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  EXPECT_EQ(stream(tokenizer, {233, 154}), (Pieces{"", "", "��"}));
  EXPECT_EQ(tokenizer.decode(Ids{233, 154}, false), "��");
  EXPECT_EQ(stream(tokenizer, {243, 162, 260}), (Pieces{"", "", "��a", ""}));
}

TEST(Case40, OnlyTheFirstSpaceIsRemoved) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  EXPECT_EQ(stream(tokenizer, {265, 265}), (Pieces{"ab", " ab", ""}));
  EXPECT_EQ(stream(tokenizer, {265, 268, 265}), (Pieces{"ab", "<m>", " ab", ""}));
  EXPECT_EQ(stream(tokenizer, {268, 265}, {.skip_special_tokens = true}), (Pieces{"", "ab", ""}));
}

TEST(Case40, BytesThatAreNoUtf8BecomeReplacementCharacters) {
  const auto id = [](int byte) { return 3 + byte; };
  // Overlong C0 80, surrogate ED A0 80, F5.
  const Ids broken = {id(0xC0), id(0x80), id(0xED), id(0xA0), id(0x80), id(0xF5)};
  EXPECT_EQ(tokenizer_of(case39_json()).decode(broken, false), "������");
  const Ids bytes = {0xC0, 0x80, 0xED, 0xA0, 0x80, 0xF5, 0xF0, 0x9F, 'A'};
  EXPECT_EQ(tokenizer_of(byte_level_json()).decode(bytes, false), "�������A");
}

TEST(Case40, WholeCharactersBesideABrokenByteStay) {
  const auto id = [](int byte) { return 3 + byte; };
  EXPECT_EQ(tokenizer_of(case39_json()).decode(Ids{id('x'), id(0xC3), id(0xA9), id(0xFF)}, false),
            "xé�");
}

// Every property that must hold for any list of ids, over 10^5 lists.
TEST(Case40, JoinedPiecesAreTheWholeDecode) {
  const Tokenizer tokenizers[] = {tokenizer_of(case39_json()), tokenizer_of(byte_level_json())};
  std::mt19937 random(7);
  for (int round = 0; round < 100'000; ++round) {
    const Tokenizer& tokenizer = tokenizers[round % 2];
    // Ids past the vocabulary and below zero among them.
    std::uniform_int_distribution<int32_t> any(-1, static_cast<int32_t>(tokenizer.vocab_size()));
    Ids ids(random() % 12);
    for (int32_t& id : ids) id = any(random);
    const bool skip = random() % 2 == 0;
    std::string joined;
    for (const std::string& piece : stream(tokenizer, ids, {.skip_special_tokens = skip})) {
      ASSERT_EQ(first_invalid_utf8(piece), std::string::npos);
      joined += piece;
    }
    ASSERT_EQ(joined, tokenizer.decode(ids, skip)) << "round " << round;
  }
}

TEST(Case41, IdsPastTheTokenizerDecodeToNothing) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  EXPECT_EQ(tokenizer.vocab_size(), 269);
  EXPECT_EQ(stream(tokenizer, {265, 269, -1, INT32_MAX, 265}),
            (Pieces{"ab", "", "", "", " ab", ""}));
  EXPECT_EQ(tokenizer.decode(Ids{269, 30'000, -5}, false), "");
  EXPECT_EQ(tokenizer.id_to_token(269), std::nullopt);
  EXPECT_EQ(tokenizer.tokens(Ids{265, 269}), (Pieces{"▁ab", ""}));
}

TEST(Case41, HolesInTheIdsAreUnknownIds) {
  Json json = case39_json();
  json["added_tokens"].push_back(added_token("<far>", 1'000'000));
  const Tokenizer tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer.vocab_size(), 1'000'001);
  EXPECT_EQ(tokenizer.decode(Ids{265, 999'999, 1'000'000}, false), "ab<far>");
}

TEST(StreamDecoder, TextOfThePromptIsNotRepeatedAndTheSpaceAfterItStays) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  const Ids prompt = {268, 265};
  EXPECT_EQ(stream(tokenizer, {265, 262}, {.skip_special_tokens = true, .context = prompt}),
            (Pieces{" ab", "c", ""}));
  EXPECT_EQ(stream(tokenizer, {}, {.context = prompt}), (Pieces{""}));
}

TEST(StreamDecoder, HoldsAReplacementCharacterOfTheTextItself) {
  const Tokenizer tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(stream(tokenizer, {'a', 0xEF, 0xBF, 0xBD, 'b'}), (Pieces{"a", "", "", "", "�b", ""}));
}

TEST(StreamDecoder, AMillionIdsTakeLinearTime) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  StreamDecoder decoder(tokenizer);
  size_t bytes = 0;
  // Bytes that never become a character: nothing may be handed out, and nothing decoded again.
  for (int i = 0; i < 1'000'000; ++i) bytes += decoder.push(3 + 0x80).size();
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(decoder.finish().size(), 3'000'000u);
}

}  // namespace
}  // namespace larder
