#include "larder/text/post_processor.h"

#include "larder/text/stage.h"

namespace larder {
namespace {

using Make = PostProcessor (*)(const JsonFields&);

// The ids that a template writes for one special token.
std::vector<int32_t> template_ids(const JsonFields& fields, const std::string& name) {
  const Json* all = fields.object("special_tokens");
  const Json* object = all ? JsonFields(*all, fields.what()).object(name) : nullptr;
  if (!object)
    fail(fields.what(), ": the template's token ", in_quotes(name), " is not in special_tokens");
  const JsonFields special(*object, str(fields.what(), ".special_tokens[", in_quotes(name), "]"));
  std::vector<int32_t> ids;
  for (const int64_t id : required(special.integers("ids"), special, "ids"))
    ids.push_back(checked_id(id, name, special.what()));
  return ids;
}

PostProcessor read_template(const JsonFields& fields) {
  PostProcessor result;
  bool text_seen = false;
  for (const Json& part : required_list(fields, "single")) {
    const JsonFields piece(part, fields.what() + ".single");
    if (const Json* text = piece.object("Sequence")) {
      const std::string which = required_string(JsonFields(*text, piece.what()), "id");
      if (text_seen || which != "A") fail(piece.what(), " must hold the sequence A once");
      text_seen = true;
    } else if (const Json* special = piece.object("SpecialToken")) {
      const std::string name = required_string(JsonFields(*special, piece.what()), "id");
      auto& side = text_seen ? result.after : result.before;
      for (const int32_t id : template_ids(fields, name)) side.push_back(id);
    } else {
      fail(piece.what(), ": expected SpecialToken or Sequence, found ", describe(part));
    }
  }
  if (!text_seen) fail(fields.what(), ".single must hold the sequence A once");
  return result;
}

// "cls": ["<s>", 0]
int32_t read_pair(const JsonFields& fields, std::string_view key) {
  const Json& pair = required_list(fields, key);
  if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number_integer())
    fields.wrong_type(key, "a token and its id");
  return checked_id(pair[1].get<int64_t>(), pair[0].get<std::string>(), fields.what());
}

PostProcessor read_cls_sep(const JsonFields& fields) {
  return {{read_pair(fields, "cls")}, {read_pair(fields, "sep")}};
}

PostProcessor read_sequence(const JsonFields& fields) {
  PostProcessor result;
  for (const Json& step : required_list(fields, "processors")) {
    PostProcessor outer = read_post_processor(&step, fields.what());
    outer.before.insert(outer.before.end(), result.before.begin(), result.before.end());
    result.before = std::move(outer.before);
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
  }
  return result;
}

constexpr StageType<Make> kTypes[] = {
    {"TemplateProcessing", read_template},
    {"ByteLevel", [](const JsonFields&) { return PostProcessor(); }},
    {"Sequence", read_sequence},
    {"RobertaProcessing", read_cls_sep},
    {"BertProcessing", read_cls_sep},
};

}  // namespace

PostProcessor read_post_processor(const Json* spec, const std::string& what) {
  if (!spec || spec->is_null()) return {};
  const JsonFields fields(*spec, what);
  return find_stage<Make>(fields, "post-processor", kTypes)(fields);
}

}  // namespace larder
