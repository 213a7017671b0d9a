// Normalizers: what tokenizer.json does to a text before it is cut.
#pragma once

#include <memory>
#include <string>

#include "larder/base/json.h"

namespace larder {

// One normalizer. Immutable after loading; any number of threads may call it at once.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Needs and gives valid UTF-8.
  virtual std::string apply(std::string text) const = 0;
};

// Reads "normalizer". Supported: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents,
// Prepend, Replace, ByteLevel. Gives nullptr for null or an absent spec. `what` begins every error.
std::unique_ptr<const Normalizer> make_normalizer(const Json* spec, const std::string& what);

}  // namespace larder
