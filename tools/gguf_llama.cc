#include "tools/gguf_llama.h"

#include <algorithm>
#include <array>
#include <set>

#include "larder/base/error.h"
#include "larder/tensor/shape.h"
#include "tools/gguf_rope.h"

namespace larder::tools {
namespace {

struct Sizes {
  int64_t layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t context = 0, vocab = 0;
};

int64_t size(const GgufFile& file, std::string_view key, std::optional<int64_t> absent = {}) {
  const std::optional<int64_t> value = file.integer(key);
  if (!value && !absent) fail(file.name(), ": metadata ", in_quotes(key), " is missing");
  const int64_t result = value ? *value : *absent;
  if (result < 1 || result > INT32_MAX)
    fail(file.name(), ": metadata ", in_quotes(key), " is ", result);
  return result;
}

Sizes read_sizes(const GgufFile& file) {
  Sizes s;
  s.layers = size(file, "llama.block_count");
  s.hidden = size(file, "llama.embedding_length");
  s.intermediate = size(file, "llama.feed_forward_length");
  s.heads = size(file, "llama.attention.head_count");
  s.kv_heads = size(file, "llama.attention.head_count_kv", s.heads);
  s.context = size(file, "llama.context_length");
  s.head_dim = size(file, "llama.attention.key_length", std::max<int64_t>(s.hidden / s.heads, 1));
  if (s.heads % s.kv_heads != 0) {
    fail(file.name(), ": ", s.heads, " heads cannot share ", s.kv_heads,
         " key heads: no whole number each");
  }
  if (s.head_dim % 2 != 0) fail(file.name(), ": heads of ", s.head_dim, " channels are odd");
  if (size(file, "llama.attention.value_length", s.head_dim) != s.head_dim) {
    fail_as(ErrorKind::kUnsupported, file.name(),
            ": values and keys of different lengths are not supported");
  }
  if (const int64_t rotated = size(file, "llama.rope.dimension_count", s.head_dim);
      rotated != s.head_dim) {
    fail_as(ErrorKind::kUnsupported, file.name(), ": rope on ", rotated, " of ", s.head_dim,
            " channels is not supported for this architecture");
  }
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    fail(file.name(), ": the weight token_embd.weight is missing or has not two axes");
  s.vocab = embedding->shape[0];
  return s;
}

// A key of the architecture that is not known could change the meaning of the weights.
void check_keys(const GgufFile& file) {
  static constexpr std::array<std::string_view, 21> kKnown = {
      "llama.block_count",
      "llama.context_length",
      "llama.embedding_length",
      "llama.feed_forward_length",
      "llama.vocab_size",
      "llama.attention.head_count",
      "llama.attention.head_count_kv",
      "llama.attention.key_length",
      "llama.attention.value_length",
      "llama.attention.layer_norm_rms_epsilon",
      "llama.rope.dimension_count",
      "llama.rope.freq_base",
      "llama.rope.scale_linear",
      "llama.rope.scaling.type",
      "llama.rope.scaling.factor",
      "llama.rope.scaling.original_context_length",
      "llama.rope.scaling.finetuned",
      "llama.expert_count",
      "llama.expert_used_count",
      "llama.tensor_data_layout",
      "llama.use_parallel_residual",
  };
  std::vector<std::string> unknown;
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with("llama.") && std::ranges::find(kKnown, key) == kKnown.end())
      unknown.push_back(in_quotes(key));
  }
  if (!unknown.empty()) {
    fail_as(ErrorKind::kUnsupported, file.name(),
            ": metadata that cannot be converted: ", join(unknown, ", "));
  }
  if (file.integer("llama.expert_count").value_or(0) > 0)
    fail_as(ErrorKind::kUnsupported, file.name(), ": a mixture of experts is not supported");
}

// Matches the file's tensors with the weights of the model, and remembers every fault.
class Matcher {
 public:
  Matcher(const GgufFile& file, GgufLlama& model) : file_(file), model_(model) {}

  void need(const std::string& from, const std::string& to, const std::vector<int64_t>& shape,
            int64_t rope_heads = 0) {
    if (!take(from, to, shape, rope_heads)) fault(str(from, " is missing"));
  }

  // True when it is there.
  bool take(const std::string& from, const std::string& to, const std::vector<int64_t>& shape,
            int64_t rope_heads = 0) {
    const GgufTensor* tensor = file_.find(from);
    if (!tensor) return false;
    used_.insert(from);
    if (tensor->shape != shape) {
      fault(str(from, " has shape [", join(tensor->shape, ", "), "] and not [", join(shape, ", "),
                "]"));
    } else if (shape.size() < 2 && gguf_block(tensor->type).elements > 1) {
      fault(str(from, " is a vector of type ", gguf_type_name(tensor->type)));
    }
    model_.weights.push_back({to, tensor, rope_heads});
    return true;
  }

  void ignore(const std::string& from) { used_.insert(from); }

  // Throws the faults of all weights, and those that nothing took, in one line.
  void finish() {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (!used_.contains(tensor.name)) fault(str(in_quotes(tensor.name), " is unknown"));
    }
    if (count_ == 0) return;
    fail(file_.name(), ": weights do not match the architecture: ", join(faults_, ", "),
         count_ > kShown ? str(" and ", count_ - kShown, " more") : "");
  }

 private:
  static constexpr size_t kShown = 8;

  void fault(std::string text) {
    if (++count_ <= kShown) faults_.push_back(std::move(text));
  }

  const GgufFile& file_;
  GgufLlama& model_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> faults_;  // the first few
  size_t count_ = 0;
};

struct Biases {
  int attention = 0, mlp = 0;  // how many were found
};

void match_layer(Matcher& matcher, const Sizes& s, int64_t layer, Biases& biases) {
  const std::string from = str("blk.", layer, "."), to = str("model.layers.", layer, ".");
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto linear = [&](const char* gguf, const char* name, int64_t out, int64_t in,
                          int64_t rope_heads, int& found) {
    matcher.need(str(from, gguf, ".weight"), str(to, name, ".weight"), {out, in}, rope_heads);
    found += matcher.take(str(from, gguf, ".bias"), str(to, name, ".bias"), {out}, rope_heads);
  };
  matcher.need(str(from, "attn_norm.weight"), str(to, "input_layernorm.weight"), {s.hidden});
  linear("attn_q", "self_attn.q_proj", q, s.hidden, s.heads, biases.attention);
  linear("attn_k", "self_attn.k_proj", kv, s.hidden, s.kv_heads, biases.attention);
  linear("attn_v", "self_attn.v_proj", kv, s.hidden, 0, biases.attention);
  linear("attn_output", "self_attn.o_proj", s.hidden, q, 0, biases.attention);
  matcher.need(str(from, "ffn_norm.weight"), str(to, "post_attention_layernorm.weight"),
               {s.hidden});
  linear("ffn_gate", "mlp.gate_proj", s.intermediate, s.hidden, 0, biases.mlp);
  linear("ffn_up", "mlp.up_proj", s.intermediate, s.hidden, 0, biases.mlp);
  linear("ffn_down", "mlp.down_proj", s.hidden, s.intermediate, 0, biases.mlp);
}

// Biases stand in all projections of a kind or in none: config.json has one flag for each kind.
bool all_or_none(const GgufFile& file, const char* kind, int found, int64_t all) {
  if (found != 0 && found != all) {
    fail_as(ErrorKind::kUnsupported, file.name(), ": ", found, " of ", all, " ", kind,
            " biases are there; config.json can say all or none");
  }
  return found != 0;
}

Json ids(const GgufFile& file, int64_t vocab) {
  Json result = Json::object();
  for (const char* name : {"bos", "eos", "padding"}) {
    const std::string key = str("tokenizer.ggml.", name, "_token_id");
    const std::optional<int64_t> id = file.integer(key);
    if (id && (*id < 0 || *id >= vocab))
      fail(file.name(), ": metadata ", in_quotes(key), " is ", *id, " of ", vocab, " tokens");
    const std::string field = str(name == std::string_view("padding") ? "pad" : name, "_token_id");
    if (id) result[field] = *id;
  }
  // The end of a turn ends generation as the end of the text does.
  const std::optional<int64_t> turn = file.integer("tokenizer.ggml.eot_token_id");
  if (turn && result.contains("eos_token_id") && result["eos_token_id"] != *turn) {
    if (*turn < 0 || *turn >= vocab) fail(file.name(), ": the end-of-turn id is ", *turn);
    result["eos_token_id"] = Json::array({result["eos_token_id"], *turn});
  }
  return result;
}

Json make_config(const GgufFile& file, const Sizes& s) {
  Json config = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}};
  config["hidden_size"] = s.hidden;
  config["intermediate_size"] = s.intermediate;
  config["num_hidden_layers"] = s.layers;
  config["num_attention_heads"] = s.heads;
  config["num_key_value_heads"] = s.kv_heads;
  config["head_dim"] = s.head_dim;
  config["max_position_embeddings"] = s.context;
  config["vocab_size"] = s.vocab;
  config["hidden_act"] = "silu";
  const std::optional<double> eps = file.number("llama.attention.layer_norm_rms_epsilon");
  if (!eps || *eps <= 0)
    fail(file.name(), ": llama.attention.layer_norm_rms_epsilon is missing or not above 0");
  config["rms_norm_eps"] = shortest(*eps);
  add_rope(file, s.head_dim, config);
  config["torch_dtype"] = "bfloat16";
  config["use_cache"] = true;
  return config;
}

}  // namespace

GgufLlama read_gguf_llama(const GgufFile& file) {
  const std::string architecture = file.string("general.architecture").value_or("");
  if (architecture != "llama") {
    fail_as(ErrorKind::kUnsupported, file.name(), ": the architecture ", in_quotes(architecture),
            " is not supported (\"llama\" is)");
  }
  check_keys(file);
  const Sizes s = read_sizes(file);
  GgufLlama model;
  model.context_length = s.context;
  model.vocab_size = s.vocab;
  Matcher matcher(file, model);
  Biases biases;
  matcher.need("token_embd.weight", "model.embed_tokens.weight", {s.vocab, s.hidden});
  if (s.layers > static_cast<int64_t>(file.tensors().size()))
    fail(file.name(), ": ", s.layers, " layers, but only ", file.tensors().size(), " tensors");
  for (int64_t layer = 0; layer < s.layers; ++layer) match_layer(matcher, s, layer, biases);
  matcher.need("output_norm.weight", "model.norm.weight", {s.hidden});
  const bool untied = matcher.take("output.weight", "lm_head.weight", {s.vocab, s.hidden});
  matcher.ignore("rope_freqs.weight");
  matcher.finish();
  model.config = make_config(file, s);
  model.config["tie_word_embeddings"] = !untied;
  model.config["attention_bias"] = all_or_none(file, "attention", biases.attention, 4 * s.layers);
  model.config["mlp_bias"] = all_or_none(file, "MLP", biases.mlp, 3 * s.layers);
  model.generation_config = ids(file, s.vocab);
  model.config.update(model.generation_config);
  return model;
}

}  // namespace larder::tools
