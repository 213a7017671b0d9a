// larder inspect: what is in a model folder or a safetensors file.
#include <algorithm>
#include <iostream>
#include <map>

#include "larder/base/error.h"
#include "larder/tensor/safetensors.h"
#include "tools/command.h"
#include "tools/kv_size.h"

namespace larder::tools {
namespace {

struct Flags {
  std::string path;
  bool json = false;
};

// All that is shown. Owns the mappings that `tensors` point into.
struct Contents {
  std::vector<SafetensorsFile> single;
  std::optional<SafetensorsFolder> folder;
  std::vector<const StoredTensor*> tensors;  // by name
  std::map<std::string, std::string> metadata;
  std::optional<ConfigSummary> config;
  size_t bytes = 0, elements = 0;
  std::map<std::string_view, size_t> bytes_by_dtype;

  const std::vector<SafetensorsFile>& files() const { return folder ? folder->files() : single; }
};

void read_config(const std::filesystem::path& path, Contents& contents) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  contents.config = summarize_config(parse_json(read_file(path), path.string()), path.string());
}

Contents read_contents(const std::filesystem::path& path) {
  Contents contents;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    contents.folder.emplace(path);
    read_config(path / "config.json", contents);
    contents.tensors = contents.folder->tensors();
  } else {
    contents.single.emplace_back(path);
    for (const StoredTensor& tensor : contents.single[0].tensors())
      contents.tensors.push_back(&tensor);
    std::ranges::sort(contents.tensors, {}, &StoredTensor::name);
  }
  for (const SafetensorsFile& file : contents.files())
    contents.metadata.insert(file.metadata().begin(), file.metadata().end());
  for (const StoredTensor* tensor : contents.tensors) {
    contents.bytes += tensor->bytes;
    contents.elements += tensor->bytes / dtype_size(tensor->dtype);
    contents.bytes_by_dtype[dtype_name(tensor->dtype)] += tensor->bytes;
  }
  return contents;
}

// The type that keys and values have by default: the config's, or that of most of the weights.
DType kv_dtype(const Contents& contents) {
  if (contents.config->dtype && is_float(*contents.config->dtype)) return *contents.config->dtype;
  const auto most = std::ranges::max_element(contents.bytes_by_dtype, {},
                                             [](const auto& entry) { return entry.second; });
  if (most == contents.bytes_by_dtype.end()) return DType::kF32;
  const DType dtype = *dtype_from_name(most->first);
  return is_float(dtype) ? dtype : DType::kF32;
}

// Text out of a file must not reach the terminal's control codes.
std::string printable(std::string_view text) {
  const std::string quoted = in_quotes(text, 300);
  return quoted.substr(1, quoted.size() - 2);
}

std::string human(size_t bytes) { return human_bytes(static_cast<double>(bytes)); }

void print_config(const Contents& contents) {
  const ConfigSummary& config = *contents.config;
  std::cout << "config: "
            << printable(config.architecture.empty() ? config.model_type : config.architecture);
  const std::pair<const char*, std::optional<int64_t>> numbers[] = {
      {"layers", config.num_hidden_layers},
      {"hidden_size", config.hidden_size},
      {"heads", config.num_attention_heads},
      {"key-value heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"context", config.max_position_embeddings},
      {"sliding_window", config.sliding_window}};
  for (const auto& [name, value] : numbers) {
    if (value) std::cout << str(", ", name, " ", *value);
  }
  std::cout << "\n";
  const DType dtype = kv_dtype(contents);
  const auto bytes = config.kv_bytes_per_token(dtype);
  if (!bytes) {
    std::cout << "KV cache: not known (config.json lacks layers, heads or sizes)\n";
    return;
  }
  std::cout << str("KV cache: ", *bytes, " bytes a token in ", dtype_name(dtype));
  if (const int64_t context = config.max_position_embeddings.value_or(0); context > 0) {
    std::cout << str(", ", human_bytes(static_cast<double>(*bytes) * static_cast<double>(context)),
                     " for a context of ", context);
  }
  std::cout << "\n";
}

void print(const Flags& flags, const Contents& contents) {
  const size_t files = contents.files().size();
  std::cout << str(printable(flags.path), ": ", contents.tensors.size(), " tensors in ", files,
                   files == 1 ? " file, " : " files, ", contents.elements, " elements, ",
                   human(contents.bytes), "\n");
  if (contents.config) print_config(contents);
  for (const auto& [key, value] : contents.metadata)
    std::cout << str("metadata: ", printable(key), " = ", printable(value), "\n");
  for (const auto& [dtype, bytes] : contents.bytes_by_dtype)
    std::cout << str("in ", dtype, ": ", human(bytes), "\n");
  size_t widest = 0;
  for (const StoredTensor* tensor : contents.tensors)
    widest = std::max(widest, printable(tensor->name).size());
  for (const StoredTensor* tensor : contents.tensors) {
    std::string line = printable(tensor->name);
    line.resize(widest + 2, ' ');
    std::cout << str(line, dtype_name(tensor->dtype), "  [", join(tensor->shape, ", "), "]  ",
                     human(tensor->bytes), "\n");
  }
  std::cout << std::flush;
}

Json optional_number(const std::optional<int64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json config_json(const Contents& contents) {
  const ConfigSummary& config = *contents.config;
  const DType dtype = kv_dtype(contents);
  return {{"model_type", config.model_type},
          {"architecture", config.architecture},
          {"num_hidden_layers", optional_number(config.num_hidden_layers)},
          {"hidden_size", optional_number(config.hidden_size)},
          {"num_attention_heads", optional_number(config.num_attention_heads)},
          {"num_key_value_heads", optional_number(config.num_key_value_heads)},
          {"head_dim", optional_number(config.head_dim)},
          {"vocab_size", optional_number(config.vocab_size)},
          {"max_position_embeddings", optional_number(config.max_position_embeddings)},
          {"sliding_window", optional_number(config.sliding_window)},
          {"kv_dtype", dtype_name(dtype)},
          {"kv_bytes_per_token", optional_number(config.kv_bytes_per_token(dtype))}};
}

void print_json(const Flags& flags, const Contents& contents) {
  Json tensors = Json::array();
  for (const StoredTensor* tensor : contents.tensors) {
    tensors.push_back({{"name", tensor->name},
                       {"dtype", dtype_name(tensor->dtype)},
                       {"shape", tensor->shape},
                       {"bytes", tensor->bytes}});
  }
  Json files = Json::array();
  for (const SafetensorsFile& file : contents.files()) files.push_back(file.path().string());
  Json by_dtype = Json::object();
  for (const auto& [dtype, bytes] : contents.bytes_by_dtype) by_dtype[std::string(dtype)] = bytes;
  const Json result = {{"path", flags.path},
                       {"files", files},
                       {"metadata", nlohmann::json(contents.metadata)},
                       {"config", contents.config ? config_json(contents) : Json(nullptr)},
                       {"total_tensors", contents.tensors.size()},
                       {"total_elements", contents.elements},
                       {"total_bytes", contents.bytes},
                       {"bytes_by_dtype", by_dtype},
                       {"tensors", tensors}};
  // Escaped to ASCII; a path that is no UTF-8 is shown with marks instead of thrown over.
  std::cout << result.dump(2, ' ', true, Json::error_handler_t::replace) << std::endl;
}

int run(const Flags& flags) {
  const Contents contents = read_contents(flags.path);
  if (flags.json) {
    print_json(flags, contents);
  } else {
    print(flags, contents);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app = *parent.add_subcommand(
      "inspect", "Tensors, sizes, metadata and KV bytes per token of a model folder or file");
  auto flags = std::make_shared<Flags>();
  app.add_option("path", flags->path, "A model folder or a .safetensors file")
      ->type_name("PATH")
      ->required();
  app.add_flag("--json", flags->json, "One JSON object");
  app.footer(
      "Headers are read, weights are not; the architecture need not be one that larder runs.\n\n"
      "Example:\n  larder inspect models/toy/toy-llama");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
