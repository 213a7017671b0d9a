// larder in a program of its own: loads the model folder it is given and writes a text as it comes.
#include <iostream>

#include "larder/generate/text_stream.h"

int main(int argc, char** argv) try {
  const char* folder = argc > 1 ? argv[1] : "models/toy/toy-llama";
  larder::HostAllocator memory;
  const auto model = larder::Model::load(folder, std::nullopt, memory);
  const auto tokenizer = larder::Tokenizer::load(folder);
  larder::Session session(model, {}, memory);

  larder::Request request;
  request.prompt_ids = tokenizer.encode("HAMLET.\nTo be, or not", true);
  request.max_new_tokens = 40;
  const auto& eos = model->info().eos_token_ids;
  request.eos_token_ids.assign(eos.begin(), eos.end());
  larder::GenerationOptions options;
  options.make_text = larder::stream_text(tokenizer);
  options.on_token = [](const larder::TokenEvent& event) {
    std::cout << event.text << std::flush;
    return true;  // false cancels
  };
  const auto result = larder::generate(session, std::move(request), std::move(options));
  std::cout << "\n[" << larder::finish_reason_name(result.finish_reason) << "]" << std::endl;
} catch (const larder::Error& error) {
  std::cerr << error.what() << std::endl;  // one line: what, the value, the remedy
  return 1;
}
