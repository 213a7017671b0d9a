// Writes small GGUF files for tests: right ones, and ones that are wrong in one place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder::test {

// Keys and tensors come out in the order in which they were added.
class GgufBuilder {
 public:
  void number(std::string_view key, uint32_t value);
  void real(std::string_view key, float value);
  void flag(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void numbers(std::string_view key, const std::vector<int32_t>& values);
  void reals(std::string_view key, const std::vector<float>& values);
  // A value of any type, its bytes as given.
  void raw(std::string_view key, uint32_t type, std::string_view bytes);
  // Takes back the key added last under this name.
  void remove(std::string_view key);

  // `shape` outermost first; `type` by the format's number; `bytes` are the data.
  void tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
              std::string_view bytes);
  void f32(std::string_view name, const std::vector<uint64_t>& shape,
           const std::vector<float>& values);

  std::string build() const;

 private:
  struct Key {
    std::string name, bytes;  // bytes: type and value
  };
  struct Tensor {
    std::string name, entry, data;  // entry: all but the offset
  };
  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

std::string gguf_string(std::string_view text);
std::string f32_bytes(const std::vector<float>& values);

// Metadata and weights of a llama of 2 layers, hidden 32, 4 heads, 2 key heads, head_dim 8,
// intermediate 64, vocabulary 8 (gpt2, pre smollm). Every weight w holds, in order, the numbers
// first(w), first(w) + 1/64, ... in f32, first(w) being the count of weights before it.
GgufBuilder tiny_llama();

}  // namespace larder::test
