// How much processor time a container grants: more threads than that are stopped by the kernel in
// turn, which is slower than fewer threads.
#pragma once

#include <filesystem>

namespace larder {

// The cores (rounded up) that control groups of version 2 (cpu.max) or 1 (cpu.cfs_quota_us) grant
// to this process: the tightest of its own group and all above it. 0 when there is no limit or none
// can be read. `root` is where the groups are mounted, `self` the file that lists the process's
// groups.
int cgroup_cpu_limit(const std::filesystem::path& root, const std::filesystem::path& self);

}  // namespace larder
