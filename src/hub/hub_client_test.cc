// The client against a hub that redirects, expires links and fails.
#include "hub/hub_client.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <random>
#include <thread>

#include "deltafin/synth.h"
#include "hub/memory_fetch.h"
#include "hub_double.h"
#include "hub_model.h"
#include "io/hash.h"

namespace deltafin {
namespace {

class HubClientTest : public ::testing::Test {
 protected:
  const std::string& root_ = SmallModelDir();
  const std::string file_ = ShardName(root_, 2);
  const std::string whole_ = ReadText(root_ + "/" + file_);
  HubDouble hub_{root_};
  HubOptions options_ = QuickHubOptions(hub_.endpoint());

  std::string Fetch(HubClient& client, uint64_t offset, uint64_t bytes) {
    return FetchToMemory(client, {{file_, whole_.size(), {offset, bytes}}}, nullptr)[0];
  }
};

TEST_F(HubClientTest, SaysSizeAndSha256) {
  HubClient client(options_);
  const std::vector<std::string> names = {file_, "config.json", "absent.json"};
  const auto found = client.Stat(names, nullptr);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0]->bytes, whole_.size());
  EXPECT_EQ(found[0]->sha256, Sha256OfFile(*RealFileSystem().OpenForReading(root_ + "/" + file_)));
  EXPECT_EQ(found[0]->commit.size(), 40u);
  EXPECT_EQ(found[1]->bytes, ReadText(root_ + "/config.json").size());
  EXPECT_EQ(found[1]->sha256, "");
  EXPECT_FALSE(found[2].has_value());
  EXPECT_EQ(client.Get(*found[1], nullptr), ReadText(root_ + "/config.json"));
}

TEST_F(HubClientTest, AMirrorWithoutTheHubsHeadersWillDo) {
  hub_.set_serves_itself(true);
  HubClient client(options_);
  const auto found = client.Stat(std::vector<std::string>{file_}, nullptr);
  EXPECT_EQ(found[0]->bytes, whole_.size());
  EXPECT_EQ(found[0]->sha256, "");
  EXPECT_EQ(Fetch(client, 10, 1000), whole_.substr(10, 1000));
}

TEST_F(HubClientTest, TheTokenGoesToTheHubAlone) {
  hub_.set_token("hf_secret");
  {
    HubClient client(options_);
    try {
      Fetch(client, 0, 10);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("401"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("HF_TOKEN"), std::string::npos) << error.what();
    }
  }
  options_.token = "hf_secret";
  HubClient client(options_);
  EXPECT_EQ(Fetch(client, 0, 10), whole_.substr(0, 10));
  EXPECT_GT(hub_.num_link_requests(), 0);
  EXPECT_EQ(hub_.num_leaks(), 0);
}

TEST_F(HubClientTest, LinksThatExpireAreAskedForAgain) {
  // Whoever is refused uses its new link first, so nobody is refused twice in a row and waits: also
  // not where a link serves one request and more connections than that try it.
  options_.stall_seconds = 60;  // a busy machine is no reason to wait either
  for (const int uses : {3, 1}) {
    hub_.set_uses_per_link(uses);
    std::atomic<int> notices = 0;
    HubClient client(options_, [&](const std::string&) { ++notices; });
    std::vector<MemoryRange> ranges;
    for (uint64_t i = 0; i < 40; ++i) ranges.push_back({file_, whole_.size(), {i * 1000, 500}});
    const int64_t requests = hub_.num_requests();
    const int64_t link_requests = hub_.num_link_requests();
    const auto texts = FetchToMemory(client, ranges, nullptr);
    for (uint64_t i = 0; i < 40; ++i) EXPECT_EQ(texts[i], whole_.substr(i * 1000, 500));
    EXPECT_EQ(notices, 0) << uses;
    const int64_t links = hub_.num_link_requests() - link_requests;
    const int64_t asked = hub_.num_requests() - requests - links;
    EXPECT_GE(asked, 40 / uses);
    EXPECT_LE(asked, 40);
    EXPECT_LE(links, 80);
  }
}

TEST_F(HubClientTest, NeighboursComeAsOneWhereConnectionsAreFew) {
  options_.jobs = 1;
  HubClient client(options_);
  EXPECT_EQ(Fetch(client, 0, 1), whole_.substr(0, 1));  // finds the link
  const int64_t before = hub_.num_link_requests();
  std::vector<MemoryRange> ranges;
  for (uint64_t i = 0; i < 16; ++i) ranges.push_back({file_, whole_.size(), {i * 100, 100}});
  ranges.push_back({file_, whole_.size(), {5000, 100}});
  const auto texts = FetchToMemory(client, ranges, nullptr);
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(texts[i], whole_.substr(ranges[i].range.offset, 100));
  }
  EXPECT_LE(hub_.num_link_requests() - before, 4);
}

// Each fault at every stage, three times in a row: all bytes arrive, once, in order.
TEST_F(HubClientTest, EveryFaultAtEveryStageIsOvercome) {
  for (int f = 1; f < static_cast<int>(HubFault::kCount); ++f) {
    const auto fault = static_cast<HubFault>(f);
    for (const auto stage :
         {HubRequest::Stage::kHead, HubRequest::Stage::kResolve, HubRequest::Stage::kLink}) {
      // The hub's own word is final for these two.
      const bool final = fault == HubFault::kForbidden || fault == HubFault::kNotFound;
      if (final && stage != HubRequest::Stage::kLink) continue;
      std::atomic<int> count = 0;
      hub_.SetFaults([&](const HubRequest& request) {
        return request.stage == stage && count++ < 3 ? fault : HubFault::kNone;
      });
      HubClient client(options_);
      const auto found = client.Stat(std::vector<std::string>{file_}, nullptr);
      ASSERT_TRUE(found[0].has_value());
      std::vector<MemoryRange> ranges;
      for (uint64_t i = 0; i < 4; ++i) ranges.push_back({file_, whole_.size(), {i * 5000, 3000}});
      const auto texts = FetchToMemory(client, ranges, nullptr);
      for (uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(texts[i], whole_.substr(i * 5000, 3000)) << f << " " << static_cast<int>(stage);
      }
    }
  }
  hub_.SetFaults(nullptr);
}

// A hub that never does better: an error that says what is wrong, before patience ends twice.
TEST_F(HubClientTest, WhatNeverWorksEndsWithTheReason) {
  const std::vector<std::pair<HubFault, const char*>> reasons = {
      {HubFault::kBusy, "429"},
      {HubFault::kServerError, "500"},
      {HubFault::kForbidden, "403"},
      {HubFault::kNotFound, "404"},
      {HubFault::kRangeRefused, "416"},
      {HubFault::kWholeFile, "no Range requests"},
      {HubFault::kOtherRange, "asked for"},
      {HubFault::kOtherTotal, "another one"},
      {HubFault::kNoContentRange, "Content-Range"},
      {HubFault::kShortLength, "length"},
      {HubFault::kEarlyEnd, "127.0.0.1"}};
  options_.patience_seconds = 0.3;
  for (const auto& [fault, reason] : reasons) {
    hub_.SetFaults([fault = fault](const HubRequest& request) {
      return request.stage == HubRequest::Stage::kLink ? fault : HubFault::kNone;
    });
    HubClient client(options_);
    try {
      Fetch(client, 100, 1000);
      ADD_FAILURE() << reason;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(reason), std::string::npos) << message;
      EXPECT_NE(message.find(file_), std::string::npos) << message;
      EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    }
  }
  hub_.SetFaults(nullptr);
}

// The body of an answer that is no use is not read.
TEST_F(HubClientTest, AWholeFileIsRefusedBeforeItComes) {
  hub_.SetFaults([](const HubRequest& request) {
    return request.stage == HubRequest::Stage::kLink ? HubFault::kWholeFile : HubFault::kNone;
  });
  HubClient client(options_);
  EXPECT_THROW(Fetch(client, 0, 10), Error);
  EXPECT_EQ(client.received_bytes(), 0u);
  hub_.SetFaults(nullptr);
}

TEST_F(HubClientTest, NobodyIsThere) {
  options_.endpoint = "http://127.0.0.1:1";
  options_.patience_seconds = 0.2;
  std::atomic<int> notices = 0;
  HubClient client(options_, [&](const std::string&) { ++notices; });
  EXPECT_THROW(Fetch(client, 0, 10), Error);
  EXPECT_GT(notices, 0);
}

TEST_F(HubClientTest, OfflineFetchesNothing) {
  options_.offline = true;
  HubClient client(options_);
  EXPECT_THROW(Fetch(client, 0, 10), Error);
  EXPECT_EQ(hub_.num_requests(), 0);
}

TEST_F(HubClientTest, AWaitCanBeStopped) {
  hub_.SetFaults([](const HubRequest&) { return HubFault::kStall; });
  options_.stall_seconds = 60;
  {
    HubClient client(options_);
    const std::vector<MemoryRange> ranges = {{file_, whole_.size(), {0, 10}}};
    EXPECT_THROW(FetchToMemory(client, ranges, [] { return false; }), Error);
    const RemoteFile config{"config.json", ReadText(root_ + "/config.json").size(), "", ""};
    EXPECT_THROW(client.Get(config, [] { return false; }), Error);
  }
  hub_.SetFaults(nullptr);
}

// Counts what it hears; may refuse bytes.
class CountingListener final : public RangeListener {
 public:
  void OnRangeBytes(uint64_t tag, std::span<const std::byte>) override {
    if (tag == refused) throw Error(ErrorCode::kNoSpace, "full");
  }
  void OnRangeDone(uint64_t) noexcept override { End(&done); }
  void OnRangeFailed(uint64_t, std::exception_ptr) noexcept override { End(&failed); }
  void End(int* counter) {
    const std::lock_guard lock(mutex);
    ++*counter;
    changed.notify_all();
  }
  void WaitFor(int count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done + failed == count; });
  }
  uint64_t refused = 1000;
  int done = 0;
  int failed = 0;
  std::mutex mutex;
  std::condition_variable changed;
};

TEST_F(HubClientTest, DropEndsWhatIsUnderWayAndCancelWhatIsNot) {
  hub_.SetFaults([](const HubRequest& request) {
    return request.stage == HubRequest::Stage::kLink ? HubFault::kStall : HubFault::kNone;
  });
  options_.jobs = 1;
  options_.stall_seconds = 60;
  HubClient client(options_);
  CountingListener listener;
  std::vector<RangeRequest> requests;
  for (uint64_t tag = 0; tag < 6; ++tag) {
    requests.push_back({file_,
                        whole_.size(),
                        {tag * 1000, 10},
                        tag < 2 ? ReadPriority::kDemand : ReadPriority::kAhead,
                        tag,
                        &listener});
  }
  client.Fetch(requests);
  EXPECT_TRUE(client.Cancel(&listener, 5));
  EXPECT_FALSE(client.Cancel(&listener, 5));
  client.Promote(&listener, 4);
  client.Drop(&listener);
  EXPECT_EQ(listener.failed, 5);
  EXPECT_EQ(listener.done, 0);
  hub_.SetFaults(nullptr);
}

TEST_F(HubClientTest, DropDoesNotWaitForALowRate) {
  options_.bytes_per_second = 1;
  HubClient client(options_);
  CountingListener listener;
  const RangeRequest request{file_, whole_.size(), {0, 100'000}, ReadPriority::kDemand,
                             0,     &listener};
  client.Fetch({&request, 1});
  while (client.received_bytes() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto start = std::chrono::steady_clock::now();
  client.Drop(&listener);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(listener.failed, 1);
}

TEST_F(HubClientTest, ARefusalOfOneListenerCostsItsOwnRangeOnly) {
  options_.jobs = 1;
  HubClient client(options_);
  CountingListener listener;
  listener.refused = 2;
  std::vector<RangeRequest> requests;
  for (uint64_t tag = 0; tag < 6; ++tag) {
    requests.push_back(
        {file_, whole_.size(), {tag * 1000, 1000}, ReadPriority::kDemand, tag, &listener});
  }
  client.Fetch(requests);
  listener.WaitFor(6);
  EXPECT_EQ(listener.failed, 1);
  EXPECT_EQ(listener.done, 5);
}

}  // namespace
}  // namespace deltafin
