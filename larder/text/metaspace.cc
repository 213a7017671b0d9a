#include "larder/text/metaspace.h"

#include "larder/text/utf8.h"

namespace larder {

MetaspaceOptions read_metaspace(const JsonFields& fields) {
  MetaspaceOptions options;
  options.replacement = required_string(fields, "replacement");
  if (options.replacement.empty() ||
      char_at(options.replacement, 0).length != options.replacement.size())
    fields.wrong_type("replacement", "one character");
  options.split = flag(fields, "split", true);
  if (const auto scheme = fields.string("prepend_scheme")) {
    if (*scheme == "first") {
      options.prepend = MetaspaceOptions::kFirst;
    } else if (*scheme == "never") {
      options.prepend = MetaspaceOptions::kNever;
    } else if (*scheme != "always") {
      fields.wrong_type("prepend_scheme", "first, always or never");
    }
  } else if (!flag(fields, "add_prefix_space", true)) {
    options.prepend = MetaspaceOptions::kNever;
  }
  return options;
}

}  // namespace larder
