#include <array>

#include "larder/models/mamba.h"
#include "larder/models/model.h"
#include "larder/models/recurrent_gemma.h"
#include "larder/models/t5.h"

namespace larder {
namespace {

constexpr std::array kArchitectures = {
    Architecture{"MambaForCausalLM", "mamba", Mamba::load, Mamba::outline, Mamba::weight_bytes},
    Architecture{"RecurrentGemmaForCausalLM", "recurrent_gemma", RecurrentGemma::load,
                 RecurrentGemma::outline, RecurrentGemma::weight_bytes},
    Architecture{"T5ForConditionalGeneration", "t5", T5::load, T5::outline, T5::weight_bytes},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

}  // namespace larder
