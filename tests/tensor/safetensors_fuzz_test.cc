// Mutations of valid files: the reader accepts or refuses each, and never crashes. 20,000 rounds
// by default; LARDER_FUZZ_ROUNDS asks for more (a release is tried with a million under the
// sanitizers).
#include <gtest/gtest.h>

#include <charconv>
#include <cstdlib>
#include <random>

#include "larder/tensor/safetensors.h"
#include "tests/support/memory_file.h"
#include "tests/support/temp_folder.h"

namespace larder {
namespace {

using test::little_endian;
using test::MemoryFile;

size_t rounds() {
  const char* text = std::getenv("LARDER_FUZZ_ROUNDS");
  size_t count = 20'000;
  if (text) std::from_chars(text, text + std::string_view(text).size(), count);
  return count;
}

std::string valid_file() {
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                       R"("b.weight":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]},)"
                       R"("c":{"dtype":"I64","shape":[],"data_offsets":[34,42]}} )";
  return little_endian(header.size(), 8) + header + std::string(42, '\x3f');
}

using Random = std::mt19937_64;

size_t below(Random& random, size_t bound) { return random() % bound; }

// Bytes that mean something to a header are likelier than others.
char some_byte(Random& random) {
  constexpr std::string_view kTelling = "{}[]\":,0123456789-.eE\\u \0\xff\x80_aF";
  return below(random, 3) == 0 ? static_cast<char>(random())
                               : kTelling[below(random, kTelling.size())];
}

void mutate(std::string& file, Random& random) {
  const size_t at = below(random, file.size() + 1);
  switch (below(random, 7)) {
    case 0:
      if (at < file.size()) file[at] = static_cast<char>(file[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      if (at < file.size()) file[at] = some_byte(random);
      break;
    case 2:
      file.resize(at);
      break;
    case 3:
      file.insert(at, 1 + below(random, 4), some_byte(random));
      break;
    case 4:
      file.erase(at, 1 + below(random, 8));
      break;
    case 5:  // repeat a piece: doubled keys, longer numbers
      file.insert(at, file.substr(below(random, file.size() + 1), 1 + below(random, 40)));
      break;
    default:  // a length that fits or nearly fits what follows
      if (file.size() >= 8)
        file.replace(0, 8, little_endian(file.size() - 8 - below(random, 60), 8));
  }
}

// Touches every byte of every tensor, so that a range outside the file cannot go unseen.
uint64_t read_all(const SafetensorsFile& file) {
  uint64_t sum = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    for (size_t i = 0; i < tensor.bytes; ++i) sum += static_cast<uint64_t>(tensor.data[i]);
  }
  return sum;
}

TEST(Case32, MutatedFilesNeverCrashTheReader) {
  const MemoryFile target;
  const std::string whole = valid_file();
  target.write(whole);
  ASSERT_NO_THROW(SafetensorsFile file(target.path()));
  Random random(20240229);
  size_t accepted = 0, refused = 0;
  for (size_t round = 0; round < rounds(); ++round) {
    std::string file = whole;
    for (size_t i = 1 + below(random, 3); i > 0; --i) mutate(file, random);
    target.write(file);
    try {
      const SafetensorsFile opened(target.path());
      read_all(opened);
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << round;
      ++refused;
    }
  }
  RecordProperty("accepted", str(accepted));
  EXPECT_EQ(accepted + refused, rounds());
  EXPECT_GT(accepted, rounds() / 100) << "mutations that all break the file test little";
  EXPECT_GT(refused, rounds() / 10);
}

}  // namespace
}  // namespace larder
