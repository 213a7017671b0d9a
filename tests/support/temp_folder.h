// A folder of a test's own, and short ways to fill it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace larder::test {

// Made empty on construction, removed with all it holds on destruction.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // Writes a file, making the folders it needs, and gives its path.
  std::filesystem::path write(std::string_view name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

// The text of the Error that `action` throws; "" when it throws none. Any other exception, and a
// text of more than one line, is returned as a text that no test expects.
std::string error_text(const std::function<void()>& action);

// `value` as `bytes` little-endian bytes.
std::string little_endian(uint64_t value, int bytes);

}  // namespace larder::test
