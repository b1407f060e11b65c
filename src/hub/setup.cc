#include "hub/setup.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/format.h"
#include "hub/disk_space.h"
#include "hub/hub_url.h"
#include "hub/shard_check.h"
#include "hub/shard_headers.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/index_json.h"
#include "io/write_file.h"

namespace deltafin {
namespace {

constexpr std::chrono::seconds kCheckSpaceEvery{1};
constexpr uint64_t kMaxSmallFileBytes = uint64_t{1} << 30;
// Fetching pauses when less than this part of the margin is left.
constexpr uint64_t kLowSpacePart = 10;

const char* const kAsking = "asking the hub";
const char* const kFetching = "fetching";
const char* const kVerifying = "verifying";
const char* const kDiskFull = "disk full";

bool IsCommit(const std::string& revision) {
  return revision.size() == 40 &&
         revision.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string Gb(uint64_t bytes) { return format("{:.1f} GB", static_cast<double>(bytes) / 1e9); }

std::string Sha256OfText(const std::string& text) {
  Sha256 sha;
  sha.Update(std::as_bytes(std::span(text)));
  return sha.HexDigest();
}

}  // namespace

Setup::Setup(const SetupOptions& options, std::map<std::string, std::vector<ByteRange>> ranges)
    : options_(options),
      experts_(options.experts.begin(), options.experts.end()),
      ranges_(std::move(ranges)) {
  if (options_.dir.empty()) throw Error(ErrorCode::kInvalidArgument, "--dir: expected a folder");
  if (!options_.free_disk_bytes) options_.free_disk_bytes = FreeDiskBytes;
  folders_ = ModelFolders(options_.dir, options_.also);
}

SetupReport Setup::Run() {
  if (!options_.dry_run) locks_ = LockFolders(folders_);
  known_ = ReadSourceInfo(options_.dir);
  if (options_.hub.revision.empty()) {
    options_.hub.revision = known_ ? known_->revision : kPinnedRevision;
  }
  client_ = std::make_unique<HubClient>(options_.hub, [this](const std::string& notice) {
    const std::lock_guard lock(notice_mutex_);
    notices_.push_back(notice);
  });
  meter_.emplace(Clock::now());
  AskHub();
  FindShards();
  ReadHeaders();
  CheckSelection();
  ChooseMode();
  FillReport();
  if (options_.dry_run) return report_;
  if (options_.confirm && !options_.confirm(report_)) return report_;
  CheckRoom();
  FetchSmallFiles(/*config_too=*/true);
  AdoptWholeShards();
  FetchAll();
  if (options_.verify) VerifyAll();
  FillReport();
  return report_;
}

// ---- what there is ----

void Setup::AskHub() {
  small_files_ = AskForSmallFiles();
  source_.endpoint = PrintableUrl(options_.hub.endpoint);
  source_.repo = options_.hub.repo;
  source_.revision = options_.hub.revision;
  for (const RemoteFile& file : small_files_) {
    if (!file.commit.empty()) source_.revision = file.commit;
  }
  AskForShards();
  RefuseOtherWeights();  // before anything of another version is written over what is there
  if (!options_.dry_run) FetchSmallFiles(/*config_too=*/false);
  source_.files = small_files_;
  for (const FolderShard& shard : shards_) source_.files.push_back(shard.remote);
  if (!options_.dry_run) WriteSourceInfo(options_.dir, source_);
}

// A commit never changes, so what is known of one need not be asked again.
std::vector<RemoteFile> Setup::AskForSmallFiles() {
  const bool may_reuse =
      known_ && (options_.hub.offline ||
                 (IsCommit(options_.hub.revision) && known_->revision == options_.hub.revision &&
                  known_->endpoint == PrintableUrl(options_.hub.endpoint) &&
                  known_->repo == options_.hub.repo));
  if (!may_reuse) known_.reset();
  std::vector<RemoteFile> files;
  std::vector<std::string> names;
  for (const SmallFile& file : kSmallFiles) names.emplace_back(file.name);
  std::vector<std::optional<RemoteFile>> found;
  if (may_reuse) {
    for (const std::string& name : names) {
      const RemoteFile* file = known_->Find(name);
      found.push_back(file == nullptr ? std::nullopt : std::optional(*file));
    }
  } else {
    found = client_->Stat(names, KeepGoing(kAsking));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i]) {
      if (found[i]->bytes > kMaxSmallFileBytes) {
        throw Error(ErrorCode::kCorrupt, format("{}: has {} bytes, expected at most {}", names[i],
                                                found[i]->bytes, kMaxSmallFileBytes));
      }
      files.push_back(*found[i]);
    } else if (kSmallFiles[i].required) {
      throw Error(ErrorCode::kNotFound,
                  format("{} has no {} (revision {}): check the repository and the revision",
                         client_->Describe(), names[i], options_.hub.revision));
    }
  }
  return files;
}

bool Setup::IsHere(const RemoteFile& file) const {
  const std::string path = JoinPath(options_.dir, file.name);
  if (!RealFileSystem().Exists(path)) return false;
  const auto opened = RealFileSystem().OpenForReading(path);
  return opened->size() == file.bytes &&
         (file.sha256.empty() || Sha256OfFile(*opened) == file.sha256);
}

std::string Setup::FetchSmallFile(const RemoteFile& file) {
  if (file.name == kIndexFile && !index_text_.empty()) return std::exchange(index_text_, {});
  std::string text = client_->Get(file, KeepGoing(kAsking));
  if (!file.sha256.empty() && Sha256OfText(text) != file.sha256) {
    throw Error(ErrorCode::kNetwork,
                format("{}: the SHA-256 of what came is not the hub's {}; run it again", file.name,
                       file.sha256));
  }
  return text;
}

void Setup::FetchSmallFiles(bool config_too) {
  for (const RemoteFile& file : small_files_) {
    if ((file.name == "config.json") != config_too || IsHere(file)) continue;
    WriteFileAtomically(JoinPath(options_.dir, file.name), std::string_view(FetchSmallFile(file)));
  }
}

// The index of the release has 60 MB: it is read from the file, in pieces, where it is here.
std::vector<std::string> Setup::ListShards() {
  const auto index = std::find_if(small_files_.begin(), small_files_.end(),
                                  [](const RemoteFile& f) { return f.name == kIndexFile; });
  if (IsHere(*index)) return ShardNames(options_.dir);
  index_text_ = FetchSmallFile(*index);
  return ShardIndex::Parse(index_text_, kIndexFile).shards();
}

void Setup::AskForShards() {
  const std::vector<std::string> names = ListShards();
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    if (!known_ || known_->Find(name) == nullptr) unknown.push_back(name);
  }
  const std::vector<std::optional<RemoteFile>> found = client_->Stat(unknown, KeepGoing(kAsking));
  size_t next = 0;
  for (const std::string& name : names) {
    const RemoteFile* file = known_ ? known_->Find(name) : nullptr;
    if (file == nullptr) {
      if (!found[next]) {
        throw Error(ErrorCode::kNotFound,
                    format("{} has no {}, which its index lists", client_->Describe(), name));
      }
      file = &*found[next++];
    }
    shards_.push_back(FindShard(*file, folders_));
  }
}

// Mixing two sets of weights in one folder would cost one of them.
void Setup::RefuseOtherWeights() const {
  for (const FolderShard& shard : shards_) {
    if (shard.path.empty()) continue;
    const auto old = ShardPresence::OpenForReading(RealFileSystem(), shard.path);
    if (old == nullptr || old->present_bytes() == 0) continue;
    const std::string& sha256 = shard.remote.sha256;
    const bool other_bytes = old->file_bytes() != shard.remote.bytes;
    const bool other_sha = !sha256.empty() && !old->sha256().empty() && old->sha256() != sha256;
    if (!other_bytes && !other_sha) continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: holds another version of these weights than revision {} of {}; choose "
                       "another --dir, or the revision that it was made with",
                       shard.path, source_.revision, client_->Describe()));
  }
}

void Setup::FindShards() {
  uint64_t total = 0;
  for (const FolderShard& shard : shards_) total += shard.remote.bytes;
  margin_ = DiskMargin(total);
  if (options_.dry_run) return;
  // Where there is room for a whole shard it is put as a whole.
  DiskSpace space(folders_, options_.free_disk_bytes);
  for (const FolderShard& shard : shards_) {
    if (!shard.folder.empty()) {
      space.Take(shard.folder, shard.remote.bytes - shard.local_bytes());
    }
  }
  for (FolderShard& shard : shards_) {
    if (shard.folder.empty()) shard.folder = space.Place(shard.remote.bytes);
  }
}

void Setup::ReadHeaders() {
  if (!options_.dry_run) {
    // What is on the disk is not read again for long, and a model is many times the memory: it
    // would push out everything else there.
    committer_ =
        std::make_unique<Committer>([](ShardPresence& shard, std::span<const PresentRange> ranges) {
          for (const PresentRange& range : ranges) {
            shard.file().DropFromCache(range.offset, range.bytes);
          }
        });
    fetcher_ = std::make_unique<UnitFetcher>(*client_, *committer_);
    BeginShards();
  }
  const auto keep = [this](FolderShard& shard, const std::string& header) {
    if (options_.dry_run || shard.whole) return;
    const auto bytes = std::as_bytes(std::span(header));
    for (const ByteRange& gap : shard.Missing({0, bytes.size()})) {
      RangeWriter writer(*shard.presence, gap.offset);
      writer.Write(bytes.subspan(gap.offset, gap.bytes));
      committer_->Add(*shard.presence, writer.Finish());
    }
  };
  for (FolderShard& shard : shards_) {
    try {
      (void)ReadLocalHeader(shard);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt || options_.dry_run) throw;
      const std::lock_guard lock(notice_mutex_);
      notices_.push_back(format("{}; it is fetched again", error.what()));
      if (shard.presence == nullptr) BeginShard(shard);
      shard.presence->Forget({0, 8});
    }
  }
  ReadShardHeaders(*client_, shards_, keep, KeepGoing(kAsking));
  if (committer_ != nullptr) committer_->Flush();
}

void Setup::BeginShards() {
  for (FolderShard& shard : shards_) {
    if (!shard.whole) BeginShard(shard);
  }
}

void Setup::AdoptWholeShards() {
  for (FolderShard& shard : shards_) {
    if (!shard.whole || !options_.verify) continue;
    const bool right = AdoptShard(shard, [this](uint64_t) { return Tick(kVerifying); });
    if (right) continue;
    const std::lock_guard lock(notice_mutex_);
    notices_.push_back(format("{}: its SHA-256 is not the hub's; it is fetched again", shard.path));
    BeginShard(shard);
  }
}

// ---- what is wanted ----

// What the model does not have would never come, and nothing would say so.
void Setup::CheckSelection() const {
  std::set<std::pair<int, int>> lacking = experts_;
  int last_layer = -1;
  for (const FolderShard& shard : shards_) {
    for (const FetchUnit& unit : shard.units) {
      last_layer = std::max(last_layer, unit.layer);
      if (unit.kind == UnitKind::kExpert) lacking.erase({unit.layer, unit.expert});
    }
  }
  for (const auto& range : options_.layers) {
    if (range.second <= last_layer) continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("--layers: expected layers from 0 to {}, which is the last of {}, got {}",
                       last_layer, client_->Describe(), range.second));
  }
  if (lacking.empty()) return;
  const auto& [layer, expert] = *lacking.begin();
  throw Error(ErrorCode::kInvalidArgument,
              format("{} has no expert {} in layer {}: the trace is that of another model",
                     client_->Describe(), expert, layer));
}

bool Setup::IsWantedInFull(const FetchUnit& unit) const {
  if (options_.layers.empty()) return true;
  return unit.kind == UnitKind::kExpert &&
         std::any_of(options_.layers.begin(), options_.layers.end(), [&](const auto& range) {
           return range.first <= unit.layer && unit.layer <= range.second;
         });
}

bool Setup::IsWanted(const FetchUnit& unit) const {
  if (unit.kind == UnitKind::kHeader) return true;
  if (unit.kind == UnitKind::kExpert && experts_.contains({unit.layer, unit.expert})) return true;
  if (options_.only_experts) return false;
  if (unit.kind == UnitKind::kSpine) return true;
  return report_.mode == SetupMode::kFull && IsWantedInFull(unit);
}

void Setup::ChooseMode() {
  report_.free_bytes = 0;
  std::vector<std::string> folders;
  for (const std::string& folder : folders_) {
    if (std::filesystem::exists(folder)) folders.push_back(folder);
  }
  // In a dry run the folder may not be there yet: its parent's disk it will be.
  if (folders.empty()) {
    std::filesystem::path parent = std::filesystem::absolute(options_.dir);
    while (!std::filesystem::exists(parent)) parent = parent.parent_path();
    folders.push_back(parent.string());
  }
  DiskSpace space(folders, options_.free_disk_bytes);
  for (const FolderShard& shard : shards_) {
    uint64_t missing = 0;
    for (const FetchUnit& unit : shard.units) {
      if (IsWantedInFull(unit) || unit.kind == UnitKind::kSpine) {
        missing += shard.MissingBytes(unit.range);
      }
    }
    if (shard.folder.empty()) {
      space.Place(missing);
    } else {
      space.Take(shard.folder, missing);
    }
  }
  report_.margin_bytes = margin_;
  report_.free_bytes = space.FreeBytes(margin_);
  report_.lacking_bytes = space.LackingBytes(margin_);
  report_.mode = options_.mode;
  if (options_.mode == SetupMode::kAuto) {
    report_.mode = report_.lacking_bytes == 0 ? SetupMode::kFull : SetupMode::kStream;
  }
  wanted_bytes_ = 0;
  for (const FetchPiece& piece : MissingPieces()) wanted_bytes_ += piece.range.bytes;
  report_.wanted_bytes = wanted_bytes_;
}

void Setup::CheckRoom() const {
  if (wanted_bytes_ <= report_.free_bytes || wanted_bytes_ == 0) return;
  throw Error(ErrorCode::kNoSpace,
              format("{}: {} are to be fetched, and {} are free beyond a margin of {}: free {} "
                     "more{}",
                     options_.dir, Gb(wanted_bytes_), Gb(report_.free_bytes), Gb(margin_),
                     Gb(wanted_bytes_ - report_.free_bytes),
                     report_.mode == SetupMode::kFull
                         ? ", add a folder on another disk with --also, or use --stream"
                         : ", or add a folder on another disk with --also"));
}

// The spine of all first: with it, text can be generated while the rest is fetched.
std::vector<FetchPiece> Setup::MissingPieces() {
  std::vector<FetchPiece> pieces;
  for (const bool spine : {true, false}) {
    for (FolderShard& shard : shards_) {
      for (const FetchUnit& unit : shard.units) {
        const bool is_spine = unit.kind == UnitKind::kSpine || unit.kind == UnitKind::kHeader;
        if (is_spine != spine || !IsWanted(unit)) continue;
        for (const ByteRange& gap : shard.Missing(unit.range)) {
          pieces.push_back({&shard, gap, unit.layer});
        }
      }
    }
  }
  for (FolderShard& shard : shards_) {
    const auto it = ranges_.find(shard.remote.name);
    if (it == ranges_.end()) continue;
    PresenceMap asked(shard.remote.bytes);  // neighbours may overlap
    for (const FetchPiece& piece : pieces) {
      if (piece.shard == &shard) (void)asked.Add({piece.range.offset, piece.range.bytes, 0});
    }
    for (const ByteRange& range : it->second) {
      for (const ByteRange& gap : shard.Missing(range)) {
        for (const ByteRange& rest : asked.Missing(gap)) {
          if (asked.Add({rest.offset, rest.bytes, 0})) pieces.push_back({&shard, rest, -1});
        }
      }
    }
  }
  return pieces;
}

// ---- fetching ----

void Setup::FetchAll() {
  meter_.emplace(Clock::now());
  const Clock::time_point start = Clock::now();
  for (;;) {
    std::vector<FetchPiece> pieces = MissingPieces();
    if (pieces.empty()) break;
    filled_.clear();
    for (const FetchPiece& piece : pieces) filled_.insert(piece.shard->folder);
    bool low = false;
    UnitFetcher::Outcome outcome{};
    try {
      outcome = fetcher_->Run(std::move(pieces), [&](const UnitFetcher::Status& status) {
        low = SpaceIsLow();
        return !low && Tick(kFetching, &status);
      });
    } catch (...) {
      committer_->Flush();
      throw;
    }
    FlushCommitter();
    if (low || outcome == UnitFetcher::Outcome::kDiskFull) {
      WaitForSpace();
    } else if (outcome == UnitFetcher::Outcome::kStopped) {
      throw Error(ErrorCode::kCancelled, "stopped on request");
    }
  }
  report_.fetched_bytes = fetcher_->done_bytes();
  report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (report_.seconds > 0) {
    report_.bytes_per_second = static_cast<double>(report_.fetched_bytes) / report_.seconds;
  }
  const UnitFetcher::Status end{report_.fetched_bytes, nullptr, -1};
  last_tick_ = {};
  (void)Tick(kFetching, &end);
}

// A disk that is full shows as late as here; what it refused is missing, and fetched again.
void Setup::FlushCommitter() {
  try {
    committer_->Flush();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace) throw;
    WaitForSpace();
  }
}

bool Setup::SpaceIsLow() {
  if (Clock::now() - last_space_check_ < kCheckSpaceEvery) return false;
  last_space_check_ = Clock::now();
  return std::any_of(filled_.begin(), filled_.end(), [this](const std::string& folder) {
    return options_.free_disk_bytes(folder) < margin_ / kLowSpacePart;
  });
}

void Setup::WaitForSpace() {
  uint64_t missing = 0;
  for (const FetchPiece& piece : MissingPieces()) missing += piece.range.bytes;
  {
    const std::lock_guard lock(notice_mutex_);
    notices_.push_back(
        format("the disk is full: {} are still to be fetched. Nothing is lost; free some room and "
               "this goes on, or stop it and run it again later",
               Gb(missing)));
  }
  // A little more than the limit, so that it does not stop again at once.
  for (;;) {
    std::this_thread::sleep_for(kProgressEvery);
    if (!Tick(kDiskFull)) throw Error(ErrorCode::kCancelled, "stopped on request");
    const bool enough =
        std::all_of(filled_.begin(), filled_.end(), [this](const std::string& folder) {
          return options_.free_disk_bytes(folder) > margin_ / kLowSpacePart * 2 + (1 << 20);
        });
    if (enough) return;
  }
}

void Setup::VerifyAll() {
  std::vector<std::string> wrong;
  for (FolderShard& shard : shards_) {
    if (shard.presence == nullptr || !shard.complete()) continue;
    if (!VerifyShard(shard, [this](uint64_t) { return Tick(kVerifying); })) {
      wrong.push_back(shard.remote.name);
    }
  }
  if (wrong.empty()) return;
  throw Error(ErrorCode::kCorrupt,
              format("{}{}: the SHA-256 differs from the hub's: something on the way changed the "
                     "bytes. Run it again to fetch what is wrong anew",
                     wrong[0], wrong.size() > 1 ? format(" and {} others", wrong.size() - 1) : ""));
}

// ---- reporting ----

void Setup::FillReport() {
  report_.dir = options_.dir;
  report_.source = client_->Describe();
  report_.revision = source_.revision;
  report_.num_shards = static_cast<int>(shards_.size());
  report_.complete_shards = 0;
  report_.total_bytes = 0;
  report_.local_bytes = 0;
  for (const FolderShard& shard : shards_) {
    report_.total_bytes += shard.remote.bytes;
    report_.local_bytes += shard.local_bytes();
    report_.complete_shards += shard.complete();
  }
  report_.missing_bytes = report_.total_bytes - report_.local_bytes;
  if (report_.bytes_per_second == 0) {
    const double seconds = meter_->seconds();
    if (seconds > 0) {
      report_.bytes_per_second = static_cast<double>(client_->received_bytes()) / seconds;
    }
  }
}

std::string Setup::TakeNotice() {
  const std::lock_guard lock(notice_mutex_);
  if (notices_.empty()) return "";
  std::string notice = std::move(notices_.front());
  notices_.erase(notices_.begin());
  return notice;
}

bool Setup::Tick(const std::string& phase, const UnitFetcher::Status* status) {
  const Clock::time_point now = Clock::now();
  const uint64_t done = fetcher_ == nullptr ? 0 : fetcher_->done_bytes();
  if (now - last_tick_ < kProgressEvery) return true;
  last_tick_ = now;
  meter_->Update(phase == kAsking ? client_->received_bytes() : done, now);
  if (!options_.on_progress) return true;
  SetupProgress progress;
  progress.phase = phase;
  progress.done_bytes = done;
  progress.total_bytes = std::max(wanted_bytes_, done);
  for (const FolderShard& shard : shards_) {
    progress.local_bytes += shard.local_bytes();
    progress.shard_bytes += shard.remote.bytes;
  }
  progress.bytes_per_second = meter_->bytes_per_second();
  progress.seconds_left = meter_->SecondsLeft(progress.total_bytes - done);
  progress.seconds = meter_->seconds();
  if (status != nullptr && status->shard != nullptr) {
    progress.shard = status->shard->remote.name;
    progress.layer = status->layer;
  }
  do {
    progress.notice = TakeNotice();
    if (!options_.on_progress(progress)) return false;
  } while (!progress.notice.empty());
  return true;
}

HubClient::KeepGoing Setup::KeepGoing(const std::string& phase) {
  return [this, phase] { return Tick(phase); };
}

SetupReport RunSetup(const SetupOptions& options) { return Setup(options).Run(); }

}  // namespace deltafin
