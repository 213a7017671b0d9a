// Small checkpoints of recurrent models with random weights, to be bent in tests.
#pragma once

#include "tests/support/tiny_model.h"

namespace larder::test {

// MambaForCausalLM: hidden 12, inner 20, 2 layers, kernel 4, 3 states a channel, 32 ids. `changes`
// go into the config before the weights are made to fit it.
TinyModel tiny_mamba(const Json& changes = Json::object());

// RecurrentGemmaForCausalLM: hidden 16, lru 12, 3 layers (recurrent, attention, recurrent), window
// 5, kernel 4, 2 heads of 8 over 1, 32 ids.
TinyModel tiny_recurrent_gemma(const Json& changes = Json::object());

}  // namespace larder::test
