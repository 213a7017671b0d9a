#include "larder/tensor/cpu_limit.h"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace larder {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The number at the front of `text`, which moves past it and one space; 0 for anything else ("max",
// "-1", "").
int64_t take_number(std::string_view& text) {
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (!text.empty()) text.remove_prefix(1);
  return value > 0 ? value : 0;
}

// 0 = no limit.
int cores(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return 0;
  const int64_t whole = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(whole < 4096 ? whole : 4096);
}

int limit_of(const fs::path& group) {
  const std::string max = first_line(group / "cpu.max");
  std::string_view text = max;
  const int64_t quota = take_number(text);
  const int64_t period = take_number(text);
  if (const int limit = cores(quota, period)) return limit;
  const std::string quota_v1 = first_line(group / "cpu.cfs_quota_us");
  const std::string period_v1 = first_line(group / "cpu.cfs_period_us");
  std::string_view q = quota_v1, p = period_v1;
  return cores(take_number(q), take_number(p));
}

int tighter(int a, int b) { return a == 0 || (b != 0 && b < a) ? b : a; }

// The group at mount / path and everything above it up to the mount.
int limit_upwards(const fs::path& mount, std::string_view path) {
  int limit = limit_of(mount);
  fs::path group = mount;
  for (const fs::path& part : fs::path(path).relative_path()) {
    group /= part;
    limit = tighter(limit, limit_of(group));
  }
  return limit;
}

bool names_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "cpu") return true;
    if (comma == std::string_view::npos) break;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

int cgroup_cpu_limit(const fs::path& root, const fs::path& self) {
  int limit = 0;
  std::ifstream file(self);
  // Lines are "0::/path" for version 2, "4:cpu,cpuacct:/path" for version 1.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) limit = tighter(limit, limit_upwards(root, path));
    if (!names_cpu(controllers)) continue;
    for (const std::string& mount : {controllers, std::string("cpu")})
      limit = tighter(limit, limit_upwards(root / mount, path));
  }
  return limit;
}

}  // namespace larder
