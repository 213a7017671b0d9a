#include "tests/support/gguf_builder.h"

#include <bit>
#include <cstring>

#include "larder/base/str.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

constexpr size_t kAlignment = 32;
constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

std::string array_start(uint32_t type, size_t count) {
  return little_endian(type, 4) + little_endian(count, 8);
}

std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment, '\0');
  return bytes;
}

}  // namespace

std::string gguf_string(std::string_view text) {
  return little_endian(text.size(), 8).append(text);
}

std::string f32_bytes(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += little_endian(std::bit_cast<uint32_t>(value), 4);
  return bytes;
}

void GgufBuilder::raw(std::string_view key, uint32_t type, std::string_view bytes) {
  keys_.push_back({std::string(key), little_endian(type, 4).append(bytes)});
}

void GgufBuilder::remove(std::string_view key) {
  std::erase_if(keys_, [&](const Key& k) { return k.name == key; });
}

void GgufBuilder::number(std::string_view key, uint32_t value) {
  raw(key, kU32, little_endian(value, 4));
}

void GgufBuilder::real(std::string_view key, float value) { raw(key, kF32, f32_bytes({value})); }

void GgufBuilder::flag(std::string_view key, bool value) {
  raw(key, kBool, little_endian(value, 1));
}

void GgufBuilder::text(std::string_view key, std::string_view value) {
  raw(key, kString, gguf_string(value));
}

void GgufBuilder::texts(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes = array_start(kString, values.size());
  for (const std::string& value : values) bytes += gguf_string(value);
  raw(key, kArray, bytes);
}

void GgufBuilder::numbers(std::string_view key, const std::vector<int32_t>& values) {
  std::string bytes = array_start(kI32, values.size());
  for (const int32_t value : values) bytes += little_endian(static_cast<uint32_t>(value), 4);
  raw(key, kArray, bytes);
}

void GgufBuilder::reals(std::string_view key, const std::vector<float>& values) {
  raw(key, kArray, array_start(kF32, values.size()) + f32_bytes(values));
}

void GgufBuilder::tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                         std::string_view bytes) {
  std::string entry = gguf_string(name) + little_endian(shape.size(), 4);
  for (size_t i = shape.size(); i-- > 0;) entry += little_endian(shape[i], 8);
  tensors_.push_back({std::string(name), entry + little_endian(type, 4), std::string(bytes)});
}

void GgufBuilder::f32(std::string_view name, const std::vector<uint64_t>& shape,
                      const std::vector<float>& values) {
  tensor(name, shape, 0, f32_bytes(values));
}

std::string GgufBuilder::build() const {
  std::string file = "GGUF";
  file += little_endian(3, 4) + little_endian(tensors_.size(), 8) + little_endian(keys_.size(), 8);
  for (const Key& key : keys_) file += gguf_string(key.name) + key.bytes;
  std::string data;
  for (const Tensor& tensor : tensors_) {
    file += tensor.entry + little_endian(data.size(), 8);
    data += padded(tensor.data);
  }
  return padded(file) + data;
}

GgufBuilder tiny_llama() {
  GgufBuilder b;
  b.text("general.architecture", "llama");
  b.number("llama.block_count", 2);
  b.number("llama.context_length", 128);
  b.number("llama.embedding_length", 32);
  b.number("llama.feed_forward_length", 64);
  b.number("llama.attention.head_count", 4);
  b.number("llama.attention.head_count_kv", 2);
  b.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  b.real("llama.rope.freq_base", 10000.5f);
  b.text("tokenizer.ggml.model", "gpt2");
  b.text("tokenizer.ggml.pre", "smollm");
  b.texts("tokenizer.ggml.tokens", {"<|end|>", "a", "b", "ab", "1", "\xc4\xa0",
                                    "\xc4\xa0"
                                    "a",
                                    "<u>"});
  b.numbers("tokenizer.ggml.token_type", {3, 1, 1, 1, 1, 1, 1, 4});
  b.texts("tokenizer.ggml.merges", {"a b", "\xc4\xa0 a"});
  b.number("tokenizer.ggml.bos_token_id", 0);
  b.number("tokenizer.ggml.eos_token_id", 0);
  b.text("tokenizer.chat_template", "{{ messages }}\n");
  int count = 0;
  const auto weight = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    size_t elements = 1;
    for (const uint64_t dim : shape) elements *= dim;
    std::vector<float> values(elements);
    for (size_t i = 0; i < elements; ++i)
      values[i] = static_cast<float>(count) + static_cast<float>(i) / 64;
    b.f32(name, shape, values);
    ++count;
  };
  weight("token_embd.weight", {8, 32});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string blk = str("blk.", layer, ".");
    weight(blk + "attn_norm.weight", {32});
    weight(blk + "attn_q.weight", {32, 32});
    weight(blk + "attn_k.weight", {16, 32});
    weight(blk + "attn_v.weight", {16, 32});
    weight(blk + "attn_output.weight", {32, 32});
    weight(blk + "ffn_norm.weight", {32});
    weight(blk + "ffn_gate.weight", {64, 32});
    weight(blk + "ffn_up.weight", {64, 32});
    weight(blk + "ffn_down.weight", {32, 64});
  }
  weight("output_norm.weight", {32});
  return b;
}

}  // namespace larder::test
