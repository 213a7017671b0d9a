#include "tests/support/temp_folder.h"

#include <stdlib.h>

#include <fstream>

#include "larder/base/error.h"

namespace larder::test {

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "larder_test_XXXXXX").string();
  if (!::mkdtemp(name.data())) fail("cannot make a temporary folder");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempFolder::write(std::string_view name, std::string_view content) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file.flush()) fail("cannot write ", path.string());
  return path;
}

std::string error_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find('\n') != std::string::npos) return "MORE THAN ONE LINE";
    return text;
  } catch (const std::exception& error) {
    return str("NOT A LARDER ERROR: ", error.what());
  }
  return "";
}

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

}  // namespace larder::test
