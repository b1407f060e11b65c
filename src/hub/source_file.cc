#include "hub/source_file.h"

#include <algorithm>

#include "base/format.h"
#include "deltafin/json.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/write_file.h"

namespace deltafin {
namespace {

constexpr int kVersion = 1;
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;

std::string PathOf(const std::string& dir) { return JoinPath(dir, ".deltafin/source.json"); }

}  // namespace

const RemoteFile* SourceInfo::Find(const std::string& name) const {
  const auto it =
      std::find_if(files.begin(), files.end(), [&](const RemoteFile& f) { return f.name == name; });
  return it == files.end() ? nullptr : &*it;
}

std::optional<SourceInfo> ReadSourceInfo(const std::string& dir) {
  const std::string path = PathOf(dir);
  if (!RealFileSystem().Exists(path)) return std::nullopt;
  const Json json = ParseJson(ReadWholeFile(RealFileSystem(), path, kMaxBytes), path);
  SourceInfo info;
  try {
    if (json.at("version").get<int>() != kVersion) {
      throw Error(ErrorCode::kUnsupported,
                  format("{}: version {}, expected {}", path, json.at("version").dump(), kVersion));
    }
    info.endpoint = json.at("endpoint").get<std::string>();
    info.repo = json.at("repo").get<std::string>();
    info.revision = json.at("revision").get<std::string>();
    for (const Json& file : json.at("files")) {
      info.files.push_back({file.at("name").get<std::string>(), file.at("bytes").get<uint64_t>(),
                            file.at("sha256").get<std::string>(), ""});
    }
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: {}; remove it, and run deltafin setup again", path, error.what()));
  }
  return info;
}

void WriteSourceInfo(const std::string& dir, const SourceInfo& info) {
  MakeFolders(JoinPath(dir, ".deltafin"));
  Json files = Json::array();
  for (const RemoteFile& file : info.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  const Json json{{"version", kVersion},
                  {"endpoint", info.endpoint},
                  {"repo", info.repo},
                  {"revision", info.revision},
                  {"files", files}};
  const std::string text = json.dump(1) + "\n";
  WriteFileAtomically(PathOf(dir), std::string_view(text));
}

}  // namespace deltafin
