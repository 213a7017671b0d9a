#include "larder/text/tokenizer.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/text/stages.h"
#include "larder/text/utf8.h"

namespace larder {

Tokenizer::Tokenizer(std::unique_ptr<const Stages> stages) : stages_(std::move(stages)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;  // an unreadable path is reported by the read that follows
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  return from_json(read_file(file), file.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& what) {
  TokenizerFile file = parse_tokenizer_file(json, what);
  const Json document = file.document;
  const JsonFields fields(document, what);
  auto normalizer = make_normalizer(fields.find("normalizer"), what + ": normalizer");
  auto pre_tokenizer = make_pre_tokenizer(fields.find("pre_tokenizer"), what + ": pre_tokenizer");
  Bpe model(std::move(file), what);
  const Json* added_list = fields.is_null("added_tokens") ? nullptr : fields.find("added_tokens");
  AddedTokens added(added_list, model.vocabulary(), normalizer.get(), what + ": added_tokens");
  auto post_processor =
      read_post_processor(fields.find("post_processor"), what + ": post_processor");
  Decoder decoder(fields.find("decoder"), what + ": decoder");
  return Tokenizer(std::make_unique<const Stages>(
      Stages{std::move(normalizer), std::move(pre_tokenizer), std::move(model), std::move(added),
             std::move(post_processor), std::move(decoder)}));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const size_t invalid = first_invalid_utf8(text);
  if (invalid != std::string_view::npos)
    fail("the text is not valid UTF-8 at byte ", invalid, "; convert it to UTF-8 first");
  std::vector<Piece> pieces = stages_->added.cut(text, stages_->normalizer.get());
  if (stages_->pre_tokenizer) pieces = pre_tokenize(*stages_->pre_tokenizer, std::move(pieces));
  const auto& [before, after] = stages_->post_processor;
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = before;
  for (const Piece& piece : pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
    } else {
      stages_->model.encode(piece.text, ids);
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  Decoder::Run run = stages_->decoder.start();
  std::string text;
  for (const int32_t id : ids) {
    if (const auto token = stages_->decoded_token(id, skip_special_tokens)) run.take(*token, text);
  }
  run.finish(text);
  return text;
}

std::vector<std::string> Tokenizer::tokens(std::span<const int32_t> ids) const {
  std::vector<std::string> result;
  result.reserve(ids.size());
  for (const int32_t id : ids) result.emplace_back(id_to_token(id).value_or(""));
  return result;
}

std::optional<std::string_view> Tokenizer::id_to_token(int32_t id) const {
  return stages_->token(id);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto id = stages_->added.id(token);
  return id ? id : stages_->model.vocabulary().id(token);
}

int64_t Tokenizer::vocab_size() const {
  return std::max(stages_->added.end_id(), stages_->model.vocabulary().end_id());
}

bool Tokenizer::is_special(int32_t id) const { return stages_->added.is_special(id); }

}  // namespace larder
