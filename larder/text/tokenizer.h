// The tokenizer: text to ids and back, as a tokenizer.json says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// A tokenizer.json, loaded. Move-only; owns everything it needs. Immutable after loading: any
// number of threads may use one tokenizer at once.
//
// The stages of a file: added tokens, normalizer, pre-tokenizer, model (BPE), post-processor,
// decoder; the header of each family lists what is supported, and anything else is refused by name.
// "truncation" and "padding" are not applied: how long a prompt may be is the caller's matter.
// Ids and texts are equal to those of the `tokenizers` library (0.22), which defined the format;
// decoder.h names the one exception.
class Tokenizer {
 public:
  // `path`: a tokenizer.json, or the folder that holds one. Throws Error: one line that names the
  // file, the field and the fault.
  static Tokenizer load(const std::filesystem::path& path);
  // `what` begins every error.
  static Tokenizer from_json(std::string_view json, const std::string& what);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // With `add_special_tokens`, what the post-processor puts around a text ("<s>") is there too.
  // Special tokens written in the text are found in either case. Throws Error if the text is not
  // valid UTF-8 (says at which byte).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;

  // Always valid UTF-8: broken bytes become U+FFFD. Ids that the tokenizer does not know (a model
  // may have more rows than its tokenizer has tokens) and negative ones add nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The strings of the vocabulary, as they stand in the file ("Ġthe", "<0x0A>"); empty for unknown
  // ids. The views live as long as the tokenizer.
  std::vector<std::string> tokens(std::span<const int32_t> ids) const;
  std::optional<std::string_view> id_to_token(int32_t id) const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The largest id + 1. There may be holes below it, and a model may have more rows.
  int64_t vocab_size() const;
  // Marked "special" among the added tokens: what skip_special_tokens leaves out.
  bool is_special(int32_t id) const;

 private:
  friend class StreamDecoder;
  struct Stages;
  explicit Tokenizer(std::unique_ptr<const Stages> stages);
  std::unique_ptr<const Stages> stages_;
};

}  // namespace larder
