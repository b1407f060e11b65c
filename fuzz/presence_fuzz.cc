// Any bytes as the journal of a shard: ranges inside the file that do not overlap, or an Error.
#include <cstdint>
#include <string>

#include "io/testing_file_system.h"
#include "store/presence_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltafin;  // NOLINT(google-build-using-namespace)
  MemoryFileSystem fs;
  const std::string shard = "model/shard.safetensors";
  fs.Write(PresencePath(shard), std::string(reinterpret_cast<const char*>(data), size));
  try {
    const auto content = ReadPresence(fs, shard);
    content->map.CheckInvariants();
    const std::string text = SerializePresence(content->map, content->sha256, content->verified);
    fs.Write(PresencePath(shard), text);
    const auto again = ReadPresence(fs, shard);
    if (again->map.ranges() != content->map.ranges()) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
