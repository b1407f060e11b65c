// What fetches the missing parts of a model while it runs.
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "hub/hub_client.h"
#include "hub/hub_url.h"
#include "hub/source_file.h"

namespace deltafin {
namespace {

// Connects when it is first needed: most runs of a model that is complete never do.
class LazyHubSource final : public RangeSource {
 public:
  explicit LazyHubSource(HubOptions options) : options_(std::move(options)) {
    (void)HubUrl(options_, "");  // refuses what is no address at once
  }

  void Fetch(std::span<const RangeRequest> requests) override { Client().Fetch(requests); }
  bool Cancel(RangeListener* listener, uint64_t tag) override {
    return Client().Cancel(listener, tag);
  }
  void Promote(RangeListener* listener, uint64_t tag) override { Client().Promote(listener, tag); }
  void Drop(RangeListener* listener) override {
    {
      const std::lock_guard lock(mutex_);
      if (client_ == nullptr) return;
    }
    client_->Drop(listener);
  }
  std::string Describe() const override { return HubName(options_); }

 private:
  HubClient& Client() {
    const std::lock_guard lock(mutex_);
    if (client_ == nullptr) client_ = std::make_unique<HubClient>(options_);
    return *client_;
  }

  const HubOptions options_;
  std::mutex mutex_;
  std::unique_ptr<HubClient> client_;
};

}  // namespace

std::shared_ptr<RangeSource> MakeHubSource(const HubOptions& options, const std::string& dir) {
  if (options.offline) return nullptr;
  const std::optional<SourceInfo> source = ReadSourceInfo(dir);
  if (!source) return nullptr;
  HubOptions resolved = options;
  if (resolved.revision.empty()) resolved.revision = source->revision;
  resolved.repo = source->repo;
  // The endpoint may have changed: a mirror nearby, say. Where nothing is said, the same again.
  if (resolved.endpoint == HubOptions().endpoint && resolved.path.empty()) {
    resolved.endpoint = source->endpoint;
  }
  return std::make_shared<LazyHubSource>(std::move(resolved));
}

}  // namespace deltafin
