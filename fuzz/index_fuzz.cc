// Any bytes as a shard index: a sorted index that finds all its tensors, or an Error.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "io/index_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deltafin::ShardIndex;
  try {
    const ShardIndex index =
        ShardIndex::Parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    for (size_t i = 0; i < index.num_tensors(); ++i) {
      DF_CHECK(index.shard(i) < index.shards().size());
      DF_CHECK(index.shards()[index.shard(i)].find('/') == std::string::npos);
      DF_CHECK(index.Find(index.tensor(i)) == static_cast<int>(index.shard(i)));
      DF_CHECK(i == 0 || index.tensor(i - 1) < index.tensor(i));
    }
  } catch (const deltafin::Error&) {
  }
  return 0;
}
