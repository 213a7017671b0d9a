#include "tools/import_gguf.h"

#include <stdlib.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "larder/base/error.h"
#include "larder/tensor/safetensors.h"
#include "tools/gguf_llama.h"
#include "tools/gguf_tokenizer.h"
#include "tools/gguf_weights.h"

namespace larder::tools {
namespace {

using std::filesystem::path;

// A folder under another name beside the target; removed unless it took the target's name.
class FolderToBe {
 public:
  explicit FolderToBe(const path& target) : target_(target) {
    std::error_code error;
    const path parent = target.parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, error);
    std::string name = target.string() + ".partial-XXXXXX";
    if (error || !::mkdtemp(name.data())) {
      const int reason = error ? error.value() : errno;
      fail_as(ErrorKind::kIo, "cannot make the folder ", target.string(), ": ",
              std::generic_category().message(reason));
    }
    path_ = name;
  }
  ~FolderToBe() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  FolderToBe(const FolderToBe&) = delete;
  FolderToBe& operator=(const FolderToBe&) = delete;

  void write(const char* name, const std::string& text) const {
    AtomicFile file(path_ / name);
    file.write(text.data(), text.size());
    file.commit();
  }
  path operator/(const char* name) const { return path_ / name; }

  void take_name() {
    std::error_code error;
    using std::filesystem::perms;
    std::filesystem::permissions(path_,
                                 perms::owner_all | perms::group_read | perms::group_exec |
                                     perms::others_read | perms::others_exec,
                                 error);
    std::filesystem::rename(path_, target_, error);
    if (error) {
      fail_as(ErrorKind::kIo, "cannot make the folder ", target_.string(), ": ", error.message());
    }
    path_.clear();
  }

 private:
  path target_, path_;
};

void check_target(const path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status)) return;
  if (!std::filesystem::is_directory(status) || !std::filesystem::is_empty(folder, error)) {
    fail(folder.string(), " exists and is not an empty folder; remove it or name another one");
  }
}

}  // namespace

ImportResult import_gguf(const path& gguf, const path& folder, const std::function<bool()>& stop) {
  // "models/x/" names the folder x.
  const path target = folder.has_filename() ? folder : folder.parent_path();
  check_target(target);
  const GgufFile file(gguf);
  const GgufLlama model = read_gguf_llama(file);
  const GgufTokenizer tokenizer = read_gguf_tokenizer(file, model.vocab_size, model.context_length);
  FolderToBe output(target);
  std::vector<std::vector<uint16_t>> data;
  std::vector<TensorToWrite> tensors;
  ImportResult result;
  for (const GgufWeight& weight : model.weights) {
    if (stop()) return {};
    data.push_back(to_bf16(*weight.tensor, weight.rope_heads));
    tensors.push_back({weight.name, DType::kBF16, weight.tensor->shape, data.back().data()});
    result.bytes += data.back().size() * sizeof(uint16_t);
  }
  result.tensors = tensors.size();
  write_safetensors(output / "model.safetensors", tensors, {{"format", "pt"}});
  output.write("tokenizer.json", tokenizer.tokenizer_json);
  output.write("tokenizer_config.json", tokenizer.tokenizer_config.dump(2) + "\n");
  output.write("generation_config.json", model.generation_config.dump(2) + "\n");
  output.write("config.json", model.config.dump(2) + "\n");
  output.take_name();
  return result;
}

}  // namespace larder::tools
