#include "server/access.h"

#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/http_server.h"

namespace deltafin {
namespace {

HttpRequest With(std::vector<std::pair<std::string, std::string>> headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  return request;
}

TEST(AccessTest, KeysAreComparedWhole) {
  EXPECT_TRUE(EqualInConstantTime("abc", "abc"));
  for (const char* other : {"", "a", "ab", "abd", "abcabc", "abcd", "ABC"}) {
    EXPECT_FALSE(EqualInConstantTime("abc", other)) << other;
  }
}

TEST(AccessTest, TheKeyIsABearerToken) {
  AccessRules rules;
  EXPECT_TRUE(HasKey(rules, With({})));
  rules.api_key = "secret";
  EXPECT_FALSE(HasKey(rules, With({})));
  EXPECT_FALSE(HasKey(rules, With({{"authorization", "secret"}})));
  EXPECT_FALSE(HasKey(rules, With({{"authorization", "Bearer "}})));
  EXPECT_FALSE(HasKey(rules, With({{"authorization", "Bearer secre"}})));
  EXPECT_FALSE(HasKey(rules, With({{"authorization", "Basic secret"}})));
  EXPECT_TRUE(HasKey(rules, With({{"authorization", "Bearer secret"}})));
  EXPECT_TRUE(HasKey(rules, With({{"authorization", "bearer secret"}})));
}

TEST(AccessTest, ALoopbackServerHasALoopbackName) {
  AccessRules rules;
  rules.loopback_hosts_only = true;
  for (const char* host : {"localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"}) {
    EXPECT_TRUE(CheckOrigin(rules, With({{"host", host}})).empty()) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[x"}) {
    EXPECT_THROW(CheckOrigin(rules, With({{"host", host}})), ApiError) << host;
  }
  rules.loopback_hosts_only = false;
  EXPECT_TRUE(CheckOrigin(rules, With({{"host", "any.example"}})).empty());
}

TEST(AccessTest, PagesOfOtherOriginsNeedPermission) {
  AccessRules rules;
  const HttpRequest own = With({{"host", "localhost:8000"}, {"origin", "http://localhost:8000"}});
  EXPECT_TRUE(CheckOrigin(rules, own).empty());
  for (const char* origin : {"http://evil.example", "null", "http://localhost:9000"}) {
    EXPECT_THROW(CheckOrigin(rules, With({{"host", "localhost:8000"}, {"origin", origin}})),
                 ApiError)
        << origin;
  }
  rules.origins = {"https://chat.example"};
  const HttpHeaders headers =
      CheckOrigin(rules, With({{"host", "localhost"}, {"origin", "https://chat.example"}}));
  ASSERT_FALSE(headers.empty());
  EXPECT_EQ(headers[0].second, "https://chat.example");
  EXPECT_THROW(CheckOrigin(rules, With({{"origin", "https://other.example"}})), ApiError);
  rules.origins = {"*"};
  EXPECT_EQ(CheckOrigin(rules, With({{"origin", "https://other.example"}}))[0].second, "*");
}

TEST(AccessTest, Loopback) {
  for (const char* host : {"127.0.0.1", "127.8.8.8", "::1", "localhost", "LocalHost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"", "*", "0.0.0.0", "::", "192.168.1.2", "example.com"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace deltafin
