// larder convert: a GGUF file becomes a Hugging Face folder.
#include <iostream>

#include "larder/base/error.h"
#include "tools/command.h"
#include "tools/import_gguf.h"
#include "tools/interrupt.h"

namespace larder::tools {
namespace {

struct Flags {
  std::string gguf, folder;
};

int run(const Flags& flags) {
  catch_interrupts();
  const ImportResult result = import_gguf(flags.gguf, flags.folder, interrupted);
  if (result.tensors == 0) return kInterrupted;
  std::cout << str(flags.folder, ": ", result.tensors, " tensors, ",
                   human_bytes(static_cast<double>(result.bytes)), " in bf16")
            << std::endl;
  return 0;
}

}  // namespace

void add_convert(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app =
      *parent.add_subcommand("convert", "Make a Hugging Face folder in bf16 of a GGUF file");
  auto flags = std::make_shared<Flags>();
  app.add_option("gguf", flags->gguf, "A GGUF file of the Llama architecture")
      ->type_name("IN.gguf")
      ->required();
  app.add_option("folder", flags->folder, "The folder to make; it must not hold anything yet")
      ->type_name("OUT_DIR")
      ->required();
  app.footer(
      "Reads GGUF version 3 with F32, F16, BF16, Q8_0, Q4_0 and Q4_1 tensors. Writes config.json, "
      "generation_config.json,\ntokenizer.json, tokenizer_config.json and model.safetensors.\n\n"
      "Example:\n  larder convert SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
