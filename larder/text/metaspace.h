// The fields that the Metaspace pre-tokenizer and the Metaspace decoder share.
#pragma once

#include <string>

#include "larder/text/stage.h"

namespace larder {

struct MetaspaceOptions {
  enum Prepend { kFirst, kAlways, kNever };
  std::string replacement;  // one character, "▁" as a rule
  Prepend prepend = kAlways;
  bool split = true;
};

// Reads "replacement", "prepend_scheme" (older files: "add_prefix_space") and "split".
MetaspaceOptions read_metaspace(const JsonFields& fields);

}  // namespace larder
