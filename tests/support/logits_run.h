// Logits of prompts fed in many ways, to be compared bit by bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "larder/generate/session.h"

namespace larder::test {

using Ids = std::vector<int32_t>;

// Feeds every prompt to its own row, `chunk` tokens of each row a step, and gives the logits of
// every token: by row, [length, vocab_size]. Resets the session first and leaves the cache filled.
std::vector<std::vector<float>> all_logits(Session& session, const std::vector<Ids>& prompts,
                                           int64_t chunk);

// `count` ids below `vocab`, the same for the same seed.
Ids some_ids(int64_t count, int64_t vocab, uint64_t seed);

// A checkpoint that the repository ships: "toy-llama", "toy-mistral", "toy-gemma2".
std::string toy_folder(const std::string& name);

// Whether two rows of logits are the same bytes; says where they part.
bool same_bits(std::span<const float> a, std::span<const float> b, std::string& where);

}  // namespace larder::test
