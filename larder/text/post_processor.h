// Post-processors: the special tokens around the ids of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "larder/base/json.h"

namespace larder {

// For one text every supported post-processor comes to this: ids before it and ids after it.
struct PostProcessor {
  std::vector<int32_t> before, after;
};

// Reads "post_processor". Supported: TemplateProcessing, ByteLevel (moves offsets only), Sequence,
// RobertaProcessing, BertProcessing; null or an absent spec adds nothing.
PostProcessor read_post_processor(const Json* spec, const std::string& what);

}  // namespace larder
