#include <array>

#include "larder/models/family.h"
#include "larder/models/model.h"

namespace larder {

extern const Family kLlamaFamily, kMistralFamily, kGemma2Family;

namespace {

constexpr std::array kFamilies = {
    &kLlamaFamily,
    &kMistralFamily,
    &kGemma2Family,
};

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family* find_family(std::string_view architecture) {
  for (const Family* family : kFamilies)
    if (architecture == family->architecture) return family;
  return nullptr;
}

const Family* find_family_of_type(std::string_view model_type) {
  for (const Family* family : kFamilies)
    if (model_type == family->model_type) return family;
  return nullptr;
}

std::string supported_architectures() {
  std::string names;
  for (const Family* family : kFamilies)
    names += str(names.empty() ? "" : ", ", family->architecture);
  for (const Architecture& other : architectures()) names += str(", ", other.name);
  return names;
}

}  // namespace larder
