// One run of setup. Internal to the hub; `deltafin/hub.h` is the way in.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "deltafin/hub.h"
#include "hub/hub_client.h"
#include "hub/model_folder.h"
#include "hub/progress_meter.h"
#include "hub/source_file.h"
#include "hub/unit_fetcher.h"

namespace deltafin {

class Setup {
 public:
  // `ranges`: of shards, by name, that are wanted besides.
  explicit Setup(const SetupOptions& options,
                 std::map<std::string, std::vector<ByteRange>> ranges = {});
  SetupReport Run();

 private:
  using Clock = std::chrono::steady_clock;

  void AskHub();
  std::vector<RemoteFile> AskForSmallFiles();
  bool IsHere(const RemoteFile& file) const;
  std::string FetchSmallFile(const RemoteFile& file);
  void FetchSmallFiles(bool config_too);
  std::vector<std::string> ListShards();
  void AskForShards();
  void RefuseOtherWeights() const;
  void FindShards();
  void AdoptWholeShards();
  void ReadHeaders();
  void CheckSelection() const;
  void ChooseMode();
  bool IsWanted(const FetchUnit& unit) const;
  bool IsWantedInFull(const FetchUnit& unit) const;
  void CheckRoom() const;
  void BeginShards();
  // Of what is wanted.
  std::vector<FetchPiece> MissingPieces();
  void FetchAll();
  void FlushCommitter();
  void WaitForSpace();
  bool SpaceIsLow();
  void VerifyAll();
  void FillReport();

  // Progress; false or a throw when the caller wants to stop.
  bool Tick(const std::string& phase, const UnitFetcher::Status* status = nullptr);
  HubClient::KeepGoing KeepGoing(const std::string& phase);
  std::string TakeNotice();

  SetupOptions options_;
  const std::set<std::pair<int, int>> experts_;  // chosen ones
  const std::map<std::string, std::vector<ByteRange>> ranges_;
  std::vector<std::string> folders_;
  std::vector<InstallLock> locks_;
  std::optional<SourceInfo> known_;  // from an earlier run
  SourceInfo source_;
  std::vector<RemoteFile> small_files_;
  std::string index_text_;  // that came and is not written yet
  std::vector<FolderShard> shards_;
  SetupReport report_;
  uint64_t margin_ = 0;

  std::mutex notice_mutex_;
  std::vector<std::string> notices_;
  std::unique_ptr<HubClient> client_;
  std::unique_ptr<Committer> committer_;  // before the shards end
  std::unique_ptr<UnitFetcher> fetcher_;
  Clock::time_point last_tick_{};
  Clock::time_point last_space_check_{};
  std::set<std::string> filled_;  // folders that something is still to be fetched into
  std::optional<ProgressMeter> meter_;
  uint64_t wanted_bytes_ = 0;
};

}  // namespace deltafin
