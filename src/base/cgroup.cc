#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace deltafin {
namespace {

bool ListHas(const std::string& comma_list, std::string_view item) {
  std::istringstream in(comma_list);
  for (std::string part; std::getline(in, part, ',');) {
    if (part == item) return true;
  }
  return false;
}

// /proc/self/mountinfo writes space, tab, newline and backslash as \ooo.
std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      const int code = (text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0');
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// This process's group in the hierarchy of `controller`; version 2 is the line "0::PATH".
std::optional<std::string> GroupPath(const std::string& root, std::string_view controller,
                                     int version) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version == 2 ? controllers.empty() : ListHas(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Appends `mount_point`/relative and its parents down to the mount point, innermost first.
void AppendPath(const std::string& mount_point, std::string relative, int version,
                std::vector<CgroupFolder>* folders) {
  while (!relative.empty() && relative != "/") {
    folders->push_back({mount_point + relative, version});
    relative.erase(relative.rfind('/'));
  }
  folders->push_back({mount_point, version});
}

}  // namespace

std::vector<CgroupFolder> CgroupFolders(std::string_view controller, const std::string& root) {
  std::vector<CgroupFolder> folders;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // "31 23 0:28 ROOT MOUNT_POINT options [tags] - FSTYPE source SUPER_OPTIONS"
    std::istringstream fields(line);
    std::string skip, mount_root, mount_point, type, options;
    fields >> skip >> skip >> skip >> mount_root >> mount_point;
    while (fields >> skip && skip != "-") {
    }
    fields >> type >> skip >> options;
    const int version = type == "cgroup2" ? 2 : 1;
    if (version == 1 && (type != "cgroup" || !ListHas(options, controller))) continue;
    std::optional<std::string> group = GroupPath(root, controller, version);
    if (!group) continue;

    // The mount may show only a part of the hierarchy; a group outside it ("/..", in a namespace)
    // is limited by what the mount point shows at most.
    mount_root = Unescape(mount_root);
    if (mount_root == "/") mount_root.clear();
    const bool inside = group->starts_with(mount_root + "/") && !group->starts_with("/..");
    const std::string relative = inside ? group->substr(mount_root.size()) : "";
    AppendPath(root + Unescape(mount_point), relative, version, &folders);
  }
  return folders;
}

double CgroupCpuQuota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  for (const CgroupFolder& folder : CgroupFolders("cpu", root)) {
    double quota = 0;  // "max" (version 2) does not parse, -1 (version 1) is not positive: no limit
    double period = 0;
    if (folder.version == 2) {
      std::ifstream(folder.path + "/cpu.max") >> quota >> period;
    } else {
      std::ifstream(folder.path + "/cpu.cfs_quota_us") >> quota;
      std::ifstream(folder.path + "/cpu.cfs_period_us") >> period;
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
  }
  return least;
}

}  // namespace deltafin
