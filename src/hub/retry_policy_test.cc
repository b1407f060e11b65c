#include "hub/retry_policy.h"

#include <gtest/gtest.h>

namespace deltafin {
namespace {

using Clock = RetryState::Clock;

HttpResponse Status(int status) {
  HttpResponse response;
  response.status = status;
  return response;
}

Asked Range() {
  Asked asked;
  asked.range = ByteRange{100, 50};
  asked.file_bytes = 1000;
  return asked;
}

HttpResponse Partial(uint64_t first, uint64_t last, std::optional<uint64_t> total) {
  HttpResponse response = Status(206);
  response.content_range = ContentRange{first, last, total};
  response.content_length = last - first + 1;
  return response;
}

Verdict Judge(const HttpResponse& response, const Asked& asked) {
  return JudgeResponse(response, asked).verdict;
}

TEST(JudgeResponseTest, OnlyTheRangeThatWasAskedForIsGood) {
  EXPECT_EQ(Judge(Partial(100, 149, 1000), Range()), Verdict::kGood);
  EXPECT_EQ(Judge(Partial(100, 149, {}), Range()), Verdict::kGood);
  EXPECT_EQ(Judge(Partial(101, 149, 1000), Range()), Verdict::kRetryFewTimes);
  EXPECT_EQ(Judge(Partial(100, 148, 1000), Range()), Verdict::kRetryFewTimes);
  EXPECT_EQ(Judge(Partial(100, 149, 1001), Range()), Verdict::kRetryFewTimes);
  EXPECT_EQ(Judge(Status(206), Range()), Verdict::kRetryFewTimes);
  HttpResponse short_body = Partial(100, 149, 1000);
  short_body.content_length = 49;
  EXPECT_EQ(Judge(short_body, Range()), Verdict::kRetryFewTimes);
}

TEST(JudgeResponseTest, AWholeFileIsNoRange) {
  const Judgement j = JudgeResponse(Status(200), Range());
  EXPECT_EQ(j.verdict, Verdict::kRetryFewTimes);
  EXPECT_NE(j.reason.find("no Range requests"), std::string::npos);
  EXPECT_EQ(Judge(Status(200), Asked()), Verdict::kGood);
}

TEST(JudgeResponseTest, AFileOfAnotherLengthIsNotTheFile) {
  Asked asked;
  asked.file_bytes = 10;
  HttpResponse response = Status(200);
  response.content_length = 11;
  EXPECT_EQ(Judge(response, asked), Verdict::kRetryFewTimes);
}

TEST(JudgeResponseTest, StatusesAsAPersonWouldTakeThem) {
  Asked link = Range();
  link.of_hub = false;
  EXPECT_EQ(Judge(Status(403), link), Verdict::kResolveAgain);
  EXPECT_EQ(Judge(Status(403), Range()), Verdict::kGiveUp);
  EXPECT_EQ(Judge(Status(401), Range()), Verdict::kGiveUp);
  EXPECT_NE(JudgeResponse(Status(401), Range()).reason.find("HF_TOKEN"), std::string::npos);
  EXPECT_EQ(Judge(Status(404), Range()), Verdict::kGiveUp);
  EXPECT_EQ(JudgeResponse(Status(404), Range()).code, ErrorCode::kNotFound);
  EXPECT_EQ(Judge(Status(404), link), Verdict::kResolveAgain);
  EXPECT_EQ(Judge(Status(416), Range()), Verdict::kResolveAgain);
  EXPECT_EQ(Judge(Status(400), Range()), Verdict::kGiveUp);
  for (const int busy : {408, 429, 500, 502, 503, 504}) {
    EXPECT_EQ(Judge(Status(busy), Range()), Verdict::kRetry) << busy;
  }
  EXPECT_TRUE(JudgeResponse(Status(429), Range()).for_all);
  HttpResponse redirect = Status(302);
  EXPECT_EQ(Judge(redirect, Range()), Verdict::kRetryFewTimes);
  redirect.location = "/elsewhere";
  EXPECT_EQ(Judge(redirect, Range()), Verdict::kFollow);
}

class RetryStateTest : public ::testing::Test {
 protected:
  std::optional<double> Next(Verdict verdict, double at_seconds,
                             std::optional<double> retry_after = {}) {
    Judgement judgement;
    judgement.verdict = verdict;
    judgement.retry_after_seconds = retry_after;
    return state_.NextDelay(options_, judgement,
                            start_ + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(at_seconds)),
                            random_);
  }
  HubOptions options_;
  RetryState state_;
  std::mt19937_64 random_{5};
  const Clock::time_point start_ = Clock::now();
};

TEST_F(RetryStateTest, WaitsLongerEachTimeUpToALimit) {
  options_.retry_seconds = 1;
  options_.max_retry_seconds = 10;
  options_.patience_seconds = 1e6;
  for (const double top : {1, 2, 4, 8, 10, 10}) {
    const double delay = Next(Verdict::kRetry, 0).value();
    EXPECT_GE(delay, top / 2);
    EXPECT_LE(delay, top);
  }
}

TEST_F(RetryStateTest, DoesWhatTheServerAsks) {
  EXPECT_GE(Next(Verdict::kRetry, 0, 120.0).value(), 120);
  // A wish that makes no sense is not followed to the end of time.
  options_.patience_seconds = 1e9;
  EXPECT_LE(Next(Verdict::kRetry, 0, 1e12).value(), 3600);
}

TEST_F(RetryStateTest, PatienceEndsAndProgressRestoresIt) {
  options_.patience_seconds = 100;
  EXPECT_TRUE(Next(Verdict::kRetry, 0).has_value());
  EXPECT_TRUE(Next(Verdict::kRetry, 50).has_value());
  EXPECT_FALSE(Next(Verdict::kRetry, 100).has_value());
  state_.OnProgress();
  EXPECT_TRUE(Next(Verdict::kRetry, 200).has_value());
}

TEST_F(RetryStateTest, WrongAnswersAreTriedAFewTimesOnly) {
  int tries = 0;
  while (Next(Verdict::kRetryFewTimes, 0)) ++tries;
  EXPECT_EQ(tries, 5);
}

TEST_F(RetryStateTest, ANewAddressIsAskedForAtOnce) {
  EXPECT_EQ(Next(Verdict::kResolveAgain, 0), 0.0);
  EXPECT_GT(Next(Verdict::kResolveAgain, 0).value(), 0);
}

TEST_F(RetryStateTest, GivesUpWhereTryingIsNoUse) {
  EXPECT_FALSE(Next(Verdict::kGiveUp, 0).has_value());
}

}  // namespace
}  // namespace deltafin
