#include "hub/hub_url.h"

#include <gtest/gtest.h>

#include "hub/rate_limit.h"

namespace deltafin {
namespace {

TEST(HubUrlTest, NamesAFileOfARevision) {
  HubOptions options;
  options.revision = "main";
  EXPECT_EQ(HubUrl(options, "config.json"),
            "https://huggingface.co/moonshotai/Kimi-K3/resolve/main/config.json");
  options.endpoint = "http://mirror:8080/";
  options.path = "k3/files/";
  EXPECT_EQ(HubUrl(options, "a b#.json"), "http://mirror:8080/k3/files/a%20b%23.json");
  options.revision.clear();
  options.path.clear();
  EXPECT_NE(HubUrl(options, "x").find(kPinnedRevision), std::string::npos);
}

TEST(HubUrlTest, RefusesWhatIsNoAddress) {
  HubOptions options;
  for (const char* wrong : {"", "file:///etc/passwd", "ftp://host", "not an address", "http://"}) {
    options.endpoint = wrong;
    EXPECT_THROW(HubUrl(options, "x"), Error) << wrong;
  }
}

TEST(HubUrlTest, ATokenGoesToTheSameOriginOnly) {
  EXPECT_TRUE(SameOrigin("https://host/a", "https://HOST:443/b?c"));
  EXPECT_FALSE(SameOrigin("https://host/a", "http://host/a"));
  EXPECT_FALSE(SameOrigin("https://host/a", "https://host:444/a"));
  EXPECT_FALSE(SameOrigin("https://host/a", "https://host.evil/a"));
  EXPECT_FALSE(SameOrigin("https://host/a", "https://host@evil/a"));
  EXPECT_FALSE(SameOrigin("https://host/a", "nonsense"));
}

TEST(HubUrlTest, LocationsAreAbsoluteOrRelative) {
  EXPECT_EQ(ResolveLocation("https://host/a/b", "/c?d=e"), "https://host/c?d=e");
  EXPECT_EQ(ResolveLocation("https://host/a/b", "https://cdn/x"), "https://cdn/x");
  EXPECT_EQ(ResolveLocation("https://host/a", "file:///etc/passwd"), "");
  EXPECT_EQ(ResolveLocation("https://host/a", "ftp://x/y"), "");
}

TEST(HubUrlTest, MessagesHaveNoSecrets) {
  EXPECT_EQ(PrintableUrl("https://user:pass@host/a?X-Amz-Signature=secret"), "https://host/a");
}

TEST(RateLimitTest, PaysForWhatCame) {
  using Clock = RateLimit::Clock;
  const Clock::time_point start = Clock::now();
  RateLimit limit(1000);
  double waited = 0;
  for (int i = 0; i < 10; ++i) {
    const auto now =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(waited));
    waited += std::max(0.0, limit.Spend(1000, now).count());
  }
  EXPECT_NEAR(waited, 9.9, 0.2);
  EXPECT_EQ(RateLimit(0).Spend(1 << 30, start).count(), 0);
}

}  // namespace
}  // namespace deltafin
