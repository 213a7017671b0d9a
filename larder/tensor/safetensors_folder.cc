#include <set>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"

namespace larder {
namespace {

using std::filesystem::path;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

// A weight's name and the file that the index says holds it.
using Placement = std::vector<std::pair<std::string, std::string>>;

bool stays_inside(const std::string& name) {
  if (name.empty() || name.find('\0') != std::string::npos) return false;
  const path relative = name;
  if (relative.is_absolute()) return false;
  for (const path& part : relative) {
    if (part == "..") return false;
  }
  return true;
}

Placement read_index(const path& index) {
  const std::string file = index.string();
  const Json document = parse_json(read_file(index, 100'000'000), file);
  const Json* map = JsonFields(document, file).object("weight_map");
  if (!map) fail(file, ": weight_map is missing");
  Placement placement;
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string()) {
      fail(file, ": weight_map ", in_quotes(name), " must be a file name, found ", describe(value));
    }
    placement.emplace_back(name, value.get<std::string>());
    if (!stays_inside(placement.back().second)) {
      fail(file, ": weight_map ", in_quotes(name), " points to ",
           in_quotes(placement.back().second), ", which is not inside the model folder");
    }
  }
  if (placement.empty()) fail(file, ": weight_map is empty");
  return placement;
}

std::string quoted_list(const std::vector<std::string>& names, size_t limit) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() < limit) shown.push_back(in_quotes(name));
  }
  return str(join(shown, ", "),
             names.size() > limit ? str(" and ", names.size() - limit, " more") : "");
}

std::set<std::string> existing_files(const path& folder, const Placement& placement) {
  std::set<std::string> files;
  for (const auto& [weight, file] : placement) files.insert(file);
  std::vector<std::string> missing;
  for (const std::string& file : files) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(folder / file, ignored)) missing.push_back(file);
  }
  if (!missing.empty()) {
    fail(folder.string(), ": ", missing.size(), " of ", files.size(),
         " files named by its index are missing: ", quoted_list(missing, missing.size()));
  }
  return files;
}

void check_placement(const path& folder, const Placement& placement,
                     const std::map<std::string, const SafetensorsFile*>& files) {
  std::vector<std::string> lost;
  for (const auto& [weight, file] : placement) {
    if (!files.at(file)->find(weight)) lost.push_back(str(weight, " in ", file));
  }
  if (!lost.empty()) {
    fail(folder.string(), ": ", lost.size(), " tensors are not where ", kIndex,
         " says: ", quoted_list(lost, 8));
  }
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    fail_as(ErrorKind::kIo, "no model folder at ", folder.string());
  if (std::filesystem::exists(folder / kSingle, error)) {
    files_.emplace_back(folder / kSingle);
  } else if (std::filesystem::exists(folder / kIndex, error)) {
    const Placement placement = read_index(folder / kIndex);
    const std::set<std::string> names = existing_files(folder, placement);
    files_.reserve(names.size());
    std::map<std::string, const SafetensorsFile*> opened;
    for (const std::string& name : names) opened[name] = &files_.emplace_back(folder / name);
    check_placement(folder, placement, opened);
  } else {
    fail_as(ErrorKind::kIo, folder.string(), ": neither ", kSingle, " nor ", kIndex,
            " is in this folder");
  }
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      if (!by_name_.emplace(tensor.name, &tensor).second) {
        fail(folder.string(), ": tensor ", in_quotes(tensor.name), " is in two files, one of them ",
             in_quotes(file.path().filename().string()));
      }
    }
  }
}

const StoredTensor* SafetensorsFolder::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

std::vector<const StoredTensor*> SafetensorsFolder::tensors() const {
  std::vector<const StoredTensor*> result;
  result.reserve(by_name_.size());
  for (const auto& [name, tensor] : by_name_) result.push_back(tensor);
  return result;
}

}  // namespace larder
