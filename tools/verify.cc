// larder verify: what a cache format or a weight format does to a model's predictions.
#include <algorithm>
#include <iostream>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/generate/kv_quality.h"
#include "larder/text/tokenizer.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"
#include "tools/verify_weights.h"

namespace larder::tools {
namespace {

struct Flags {
  ModelFlags model;
  std::string text;
  std::vector<std::string> formats;
  int64_t tokens = 1024;
  KVQualityOptions quality;
  bool kv = false, json = false;
};

std::vector<CacheFormat> formats_of(const Flags& flags) {
  std::vector<CacheFormat> formats;
  if (flags.model.cache != "dynamic" || !flags.model.cache_config.empty())
    formats.push_back({flags.model.cache, flags.model.cache_config});
  for (const std::string& text : flags.formats) formats.push_back(parse_cache_format(text));
  return formats.empty() ? standard_kv_formats() : formats;
}

// The settings as JSON; those of no config are an empty object.
Json config_of(const CacheFormat& format) {
  return format.config.empty() ? Json::object() : parse_json(format.config, "cache_config");
}

Json json_of(const FormatQuality& quality, bool per_head) {
  Json json = {{"cache", quality.format.cache},
               {"config", config_of(quality.format)},
               {"mean_kl", quality.mean_kl},
               {"max_kl", quality.max_kl},
               {"same_top", quality.same_top},
               {"perplexity", quality.perplexity},
               {"bytes_per_token", quality.bytes_per_token}};
  if (!per_head) return json;
  json["heads"] = Json::array();
  for (const HeadError& head : quality.heads)
    json["heads"].push_back({{"layer", head.layer},
                             {"head", head.head},
                             {"key_error", head.key},
                             {"value_error", head.value},
                             {"output_error", head.output}});
  return json;
}

void print_row(const FormatQuality& quality) {
  std::cout << padded(quality.format.cache, 10) << padded(brief(quality.mean_kl), 13)
            << padded(brief(quality.max_kl), 11) << padded(fixed(quality.same_top, 4), 10)
            << padded(fixed(quality.perplexity, 4), 12)
            << padded(fixed(quality.bytes_per_token, 1), 17) << quality.format.config << '\n';
}

// The format's own table, under its line.
void print_heads(const FormatQuality& quality) {
  if (quality.heads.empty()) return;
  std::cout << "  layer  head  key_error  value_error  output_error\n";
  for (const HeadError& head : quality.heads)
    std::cout << "  " << padded(str(head.layer), 7) << padded(str(head.head), 6)
              << padded(fixed(head.key, 5), 11) << padded(fixed(head.value, 5), 13)
              << fixed(head.output, 5) << '\n';
}

void print(const KVQuality& result, const Flags& flags) {
  std::cout << result.tokens << " tokens, " << flags.quality.steps.first << " at once, then "
            << flags.quality.steps.chunk << " a step; exact f32 cache: perplexity "
            << fixed(result.exact.perplexity, 4) << ", " << fixed(result.exact.bytes_per_token, 1)
            << " bytes a token\n"
            << padded("cache", 10) << padded("mean_kl", 13) << padded("max_kl", 11)
            << padded("same_top", 10) << padded("perplexity", 12) << padded("bytes_per_token", 17)
            << "config\n";
  for (const FormatQuality& quality : result.formats) {
    print_row(quality);
    print_heads(quality);
  }
  std::cout << std::flush;
}

Json report(const KVQuality& result, const Flags& flags) {
  Json formats = Json::array();
  for (const FormatQuality& quality : result.formats)
    formats.push_back(json_of(quality, flags.quality.per_head));
  return {{"tokens", result.tokens},
          {"first", flags.quality.steps.first},
          {"chunk", flags.quality.steps.chunk},
          {"exact", json_of(result.exact, false)},
          {"formats", formats}};
}

int compare_caches(const Flags& flags, LoadedModel& loaded, const std::vector<CacheFormat>& formats,
                   std::span<const int32_t> ids) {
  const KVQuality result = measure_kv_quality(loaded.model(), loaded.options(), ids, formats,
                                              flags.quality, loaded.allocator());
  if (result.tokens == 0) return kInterrupted;
  if (flags.json) {
    std::cout << report(result, flags).dump(2) << std::endl;
  } else {
    print(result, flags);
  }
  return 0;
}

// The beginning of the text that the flags and the model's context allow.
std::vector<int32_t> read_ids(const Flags& flags, const LoadedModel& loaded,
                              const std::string& text) {
  std::vector<int32_t> ids = Tokenizer::load(flags.model.model).encode(text, true);
  const int64_t context = loaded.model()->info().max_position_embeddings;
  const int64_t most = flags.tokens == 0 ? context : std::min(flags.tokens, context);
  if (static_cast<int64_t>(ids.size()) > most) ids.resize(static_cast<size_t>(most));
  return ids;
}

int run(Flags& flags) {
  catch_interrupts();
  const bool weights = flags.model.has_weights->count() > 0;
  if (!flags.kv && !weights)
    fail("verify compares cache formats or weight formats: give --kv or --weights");
  if (flags.tokens < 0) fail("--tokens ", flags.tokens, " must not be negative");
  flags.quality.steps.interrupted = interrupted;
  if (!flags.kv) {
    const WeightComparison comparison(flags.model, flags.json);
    LoadedModel loaded(comparison.exact_flags());
    return comparison.run(loaded, read_ids(flags, loaded, read_file(flags.text)),
                          flags.quality.steps);
  }
  const std::vector<CacheFormat> formats = formats_of(flags);
  for (const CacheFormat& format : formats) config_of(format);
  if (flags.model.dtype.empty()) flags.model.dtype = "f32";
  const std::string text = read_file(flags.text);
  LoadedModel loaded(flags.model);
  return compare_caches(flags, loaded, formats, read_ids(flags, loaded, text));
}

}  // namespace

void add_verify(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app =
      *parent.add_subcommand("verify", "What cache or weight formats do to a model's predictions");
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(app);
  flags->model.has_weights->expected(0, 1)->description(
      "Compare int8 and int4 weights, or the one format given, with those stored; with --kv: what\n"
      "the model's weights are");
  app.add_flag("--kv", flags->kv, "Compare cache formats with an exact f32 cache");
  app.add_option("--text", flags->text, "The text to predict")->type_name("FILE")->required();
  app.add_option(
         "--format", flags->formats,
         "A cache to compare, with its config; may be given several times (default: --cache "
         "with --cache-config, or a list of quantized ones)")
      ->type_name("NAME[:JSON]");
  add_number(app, "--tokens", flags->tokens,
             "Tokens of the text, 0 = as many as the context holds (default 1024)");
  add_number(app, "--first", flags->quality.steps.first, "Tokens of the first step (default 64)");
  add_number(app, "--chunk", flags->quality.steps.chunk,
             "Tokens of every step after it (default 8)");
  app.add_flag(
      "--per-head", flags->quality.per_head,
      "Also, of every layer and head, the error of its keys, of its values and of attention's "
      "output: the norm\nof what rounding changes over the norm of what it changes. The queries "
      "are "
      "those of the last 64 tokens");
  app.add_flag("--json", flags->json, "One JSON object: tokens, exact, formats");
  app.footer(
      "The text is fed through every cache, or every model, in the same steps; a token's KL is "
      "KL(exact || format) of the\nnext-token distributions after it. Caches are compared in f32, "
      "weights in bf16, unless --dtype is given.\n\nExamples:\n  larder verify -m "
      "models/toy/toy-llama --weights --text README.md\n  larder verify -m models/toy/toy-llama "
      "--kv --text "
      "README.md --format 'quantized:{\"backend\": \"larder\", \"nbits\": 4}'");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
