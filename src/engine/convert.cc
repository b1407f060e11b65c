#include "deltafin/convert.h"

#include "base/format.h"
#include "base/thread_pool.h"
#include "store/checkpoint.h"
#include "store/int8_spine.h"
#include "store/joined_folders.h"
#include "store/model_files.h"

namespace deltafin {
namespace {

Int8ProgressSink SinkOf(const ConvertOptions& options) {
  if (!options.progress) return nullptr;
  return [&options](const Int8Progress& p) {
    return options.progress({p.layers_done, p.num_layers, p.bytes_done, p.total_bytes});
  };
}

ConvertResult ResultOf(const ConvertOptions& options, const Int8Summary& summary) {
  return {Int8SpineFolder(options.model_dir), summary.layers_written, summary.layers_kept,
          summary.bytes};
}

}  // namespace

ConvertResult ConvertSpineToInt8(const ConvertOptions& options) {
  // A spine that is not here is an error.
  ModelFiles local(RealFileSystem(), nullptr, FolderFlags(options.model_dir, options.also_dirs));
  JoinedFolders files(local, options.model_dir, options.also_dirs);
  const auto checkpoint = Checkpoint::Open(files, options.model_dir);
  ThreadPool pool(options.threads > 0 ? options.threads : UsableProcessors());
  return ResultOf(options, WriteInt8Spine(files, *checkpoint, pool, SinkOf(options)));
}

ConvertResult VerifyInt8Spine(const ConvertOptions& options) {
  ModelFiles local(RealFileSystem(), nullptr, FolderFlags(options.model_dir, options.also_dirs));
  JoinedFolders files(local, options.model_dir, options.also_dirs);
  const auto checkpoint = Checkpoint::Open(files, options.model_dir);
  return ResultOf(options, CheckInt8Spine(files, *checkpoint, SinkOf(options)));
}

}  // namespace deltafin
