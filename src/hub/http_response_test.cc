#include "hub/http_response.h"

#include <gtest/gtest.h>

namespace deltafin {
namespace {

HttpResponse Parse(std::initializer_list<const char*> lines) {
  HttpResponse response;
  // 2015-10-21 07:28:00 GMT
  for (const char* line : lines) TakeHeaderLine(line, 1'445'412'480, &response);
  return response;
}

TEST(HttpResponseTest, TakesWhatTheHubSays) {
  const HttpResponse r =
      Parse({"HTTP/1.1 302 Found\r\n", "X-Repo-Commit: abc\r\n", "x-linked-size:  17547264 \r\n",
             "X-Linked-ETag: \"0f0f\"\r\n", "ETag: W/\"weak\"\r\n", "Location: /a?b=c:d\r\n"});
  EXPECT_EQ(r.status, 302);
  EXPECT_TRUE(r.is_redirect());
  EXPECT_EQ(r.commit, "abc");
  EXPECT_EQ(r.linked_size, 17547264u);
  EXPECT_EQ(r.linked_etag, "0f0f");
  EXPECT_EQ(r.etag, "weak");
  EXPECT_EQ(r.location, "/a?b=c:d");
}

TEST(HttpResponseTest, ANewStatusLineBeginsAnew) {
  const HttpResponse r =
      Parse({"HTTP/1.1 100 Continue", "Content-Length: 5", "HTTP/1.1 206 Partial Content"});
  EXPECT_EQ(r.status, 206);
  EXPECT_FALSE(r.content_length.has_value());
}

TEST(HttpResponseTest, ContentRange) {
  const auto range = Parse({"Content-Range: bytes 5-9/100"}).content_range;
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, 5u);
  EXPECT_EQ(range->last, 9u);
  EXPECT_EQ(range->total, 100u);
  EXPECT_FALSE(Parse({"Content-Range: bytes 5-9/*"}).content_range->total.has_value());
  for (const char* wrong :
       {"Content-Range: bytes 9-5/100", "Content-Range: bytes 5-9/9", "Content-Range: bytes */100",
        "Content-Range: items 5-9/100", "Content-Range: bytes 5-/100", "Content-Range: bytes -9/10",
        "Content-Range: bytes 5-9", "Content-Range: bytes 5-99999999999999999999/9"}) {
    EXPECT_FALSE(Parse({wrong}).content_range.has_value()) << wrong;
  }
}

TEST(HttpResponseTest, RetryAfterInSecondsOrAsADate) {
  EXPECT_EQ(Parse({"Retry-After: 30"}).retry_after_seconds, 30.0);
  EXPECT_EQ(Parse({"Retry-After: Wed, 21 Oct 2015 07:28:30 GMT"}).retry_after_seconds, 30.0);
  EXPECT_EQ(Parse({"Retry-After: Wed, 21 Oct 2015 07:27:30 GMT"}).retry_after_seconds, 0.0);
  EXPECT_FALSE(Parse({"Retry-After: soon"}).retry_after_seconds.has_value());
}

TEST(HttpResponseTest, NonsenseIsAsGoodAsAbsent) {
  const HttpResponse r = Parse({"", "no colon", ": no name", "Content-Length: -5",
                                "Content-Length: many", "HTTP/1.1", "HTTP/1.1 abc"});
  EXPECT_EQ(r.status, 0);
  EXPECT_FALSE(r.content_length.has_value());
}

TEST(HttpResponseTest, KnowsASha256) {
  EXPECT_TRUE(LooksLikeSha256(std::string(64, 'a')));
  EXPECT_FALSE(LooksLikeSha256(std::string(63, 'a')));
  EXPECT_FALSE(LooksLikeSha256(std::string(64, 'G')));
}

}  // namespace
}  // namespace deltafin
