#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "deltafin/error.h"
#include "deltafin/json.h"
#include "server/server_test_util.h"

namespace deltafin {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kThought = "Well.<|close|>think<|sep|><|open|>response<|sep|>";
const std::string kAnswerEnd = "<|close|>response<|sep|><|close|>message<|sep|>";

class ServerTest : public testing::Test {
 protected:
  ServerTest() : scheduler_([this](const Job&) { return script_; }, 3) {
    options_.http.port = 0;
    options_.model_names = {"fake"};
    options_.version = "test";
    options_.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
    };
    Say(kThought + "Hello, world!" + kAnswerEnd);
  }

  void Say(const std::string& text) { script_ = TestTokenizer().Encode(text, Specials::kAllowed); }

  std::string Ask(const std::string& request) {
    if (!server_) server_ = Server::Start(engine_, scheduler_, options_);
    TestClient client(server_->port());
    client.Send(request);
    return client.ReadResponse();
  }
  // The body of an answer to a JSON request.
  Json AskJson(const std::string& path, const std::string& body, int status = 200) {
    const std::string response = Ask(Post(path, body));
    EXPECT_THAT(response, StartsWith("HTTP/1.1 " + std::to_string(status) + " "));
    return ParseJson(BodyOf(response), "response");
  }
  static std::string Chat(const std::string& fields = "") {
    return R"({"messages": [{"role": "user", "content": "Hi"}])" +
           (fields.empty() ? "" : ", " + fields) + "}";
  }
  // The data of a stream's events, and its comments.
  std::vector<Json> AskStream(const std::string& path, const std::string& body,
                              std::vector<std::string>* comments = nullptr) {
    if (!server_) server_ = Server::Start(engine_, scheduler_, options_);
    TestClient client(server_->port());
    client.Send(Post(path, body));
    return Events(client.ReadUntil("\r\n0\r\n\r\n"), comments);
  }
  static std::vector<Json> Events(const std::string& response,
                                  std::vector<std::string>* comments = nullptr) {
    std::vector<Json> events;
    for (size_t begin = 0; begin < response.size();) {
      const size_t end = std::min(response.find('\n', begin), response.size());
      const std::string line = response.substr(begin, end - begin);
      begin = end + 1;
      if (line.starts_with(": ") && comments != nullptr) comments->push_back(line.substr(2));
      if (!line.starts_with("data: ")) continue;
      events.push_back(line == "data: [DONE]" ? Json("[DONE]")
                                              : ParseJson(line.substr(6), "event"));
    }
    return events;
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  template <typename Condition>
  static void WaitFor(const Condition& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(condition());
  }

  FakeEngine engine_;
  std::vector<TokenId> script_;
  FakeScheduler scheduler_;
  ServerOptions options_;
  std::mutex mutex_;
  std::string log_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AChatAnswer) {
  const Json json = AskJson("/v1/chat/completions", Chat());
  EXPECT_THAT(json.at("id").get<std::string>(), StartsWith("chatcmpl-"));
  EXPECT_EQ(json.at("object"), "chat.completion");
  EXPECT_EQ(json.at("model"), "fake");
  const Json& choice = json.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "Hello, world!");
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "Well.");
  const Json& usage = json.at("usage");
  EXPECT_EQ(usage.at("completion_tokens"), script_.size() + 1);
  EXPECT_EQ(usage.at("total_tokens").get<int64_t>(),
            usage.at("prompt_tokens").get<int64_t>() + static_cast<int64_t>(script_.size()) + 1);
  EXPECT_GT(usage.at("completion_tokens_details").at("reasoning_tokens"), 0);
  WaitFor([&] { return log().find(" done: ") != std::string::npos; });  // after the answer
  EXPECT_THAT(log(), ContainsRegex("chatcmpl-.* done: [0-9]+ prompt tokens"));
}

TEST_F(ServerTest, AStreamedChatAnswer) {
  std::vector<std::string> comments;
  const std::vector<Json> events =
      AskStream("/v1/chat/completions",
                Chat(R"("stream": true, "stream_options": {"include_usage": true})"), &comments);
  ASSERT_GE(events.size(), 5u);
  EXPECT_FALSE(comments.empty());
  EXPECT_EQ(ParseJson(comments[0], "comment").at("phase"), "queued");
  EXPECT_EQ(events.front().at("choices").at(0).at("delta").at("role"), "assistant");
  std::string content;
  std::string reasoning;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    EXPECT_EQ(events[i].at("object"), "chat.completion.chunk");
    EXPECT_EQ(events[i].at("id"), events[0].at("id"));
    EXPECT_TRUE(events[i].at("usage").is_null());
    const Json& delta = events[i].at("choices").at(0).at("delta");
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
  }
  EXPECT_EQ(content, "Hello, world!");
  EXPECT_EQ(reasoning, "Well.");
  EXPECT_EQ(events[events.size() - 3].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_TRUE(events[events.size() - 2].at("choices").empty());
  EXPECT_EQ(events[events.size() - 2].at("usage").at("completion_tokens"), script_.size() + 1);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ServerTest, FinishReasons) {
  EXPECT_EQ(AskJson("/v1/chat/completions", Chat(R"("max_tokens": 3)"))
                .at("choices")
                .at(0)
                .at("finish_reason"),
            "length");
  const Json stopped = AskJson("/v1/chat/completions", Chat(R"("stop": ["wor"])"));
  EXPECT_EQ(stopped.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(stopped.at("choices").at(0).at("message").at("content"), "Hello, ");
  Say(kThought +
      "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" "
      "index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>\"x\n<|close|>argument"
      "<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>");
  const Json calls = AskJson("/v1/chat/completions", Chat());
  const Json& choice = calls.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_TRUE(choice.at("message").at("content").is_null());
  const Json& call = choice.at("message").at("tool_calls").at(0);
  EXPECT_THAT(call.at("id").get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(call.at("function").at("name"), "f");
  EXPECT_EQ(call.at("function").at("arguments"), R"({"a": "\"x\n"})");
}

TEST_F(ServerTest, StreamedCallsAreDeltas) {
  Say(kThought +
      "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" "
      "index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>one two<|close|>argument"
      "<|sep|><|close|>call<|sep|><|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|close|>message<|sep|>");
  const std::vector<Json> events = AskStream("/v1/chat/completions", Chat(R"("stream": true)"));
  std::vector<std::string> names;
  std::vector<std::string> arguments;
  std::vector<std::string> ids;
  size_t num_deltas = 0;
  for (const Json& event : events) {
    if (event == "[DONE]" || !event.at("choices").at(0).at("delta").contains("tool_calls"))
      continue;
    ++num_deltas;
    for (const Json& call : event.at("choices").at(0).at("delta").at("tool_calls")) {
      const auto index = call.at("index").get<size_t>();
      if (index == names.size()) {
        names.push_back(call.at("function").at("name"));
        ids.push_back(call.at("id"));
        arguments.emplace_back();
      } else {
        EXPECT_FALSE(call.contains("id"));
      }
      arguments.at(index) += call.at("function").at("arguments");
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"f", "g"}));
  EXPECT_EQ(arguments, (std::vector<std::string>{R"({"a": "one two"})", "{}"}));
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_GT(num_deltas, 4u);
  EXPECT_EQ(events[events.size() - 2].at("choices").at(0).at("finish_reason"), "tool_calls");
}

TEST_F(ServerTest, JsonIsEnforced) {
  const Json json =
      AskJson("/v1/chat/completions",
              Chat(R"("response_format": {"type": "json_object"}, "reasoning_effort": "none")"));
  const std::string content = json.at("choices").at(0).at("message").at("content");
  EXPECT_THAT(content, StartsWith("{"));
  EXPECT_FALSE(json.at("choices").at(0).at("message").contains("reasoning_content"));
}

TEST_F(ServerTest, ManyChoices) {
  const Json json = AskJson("/v1/chat/completions", Chat(R"("n": 3, "seed": 7)"));
  ASSERT_EQ(json.at("choices").size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(json.at("choices").at(i).at("index"), i);
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 3 * (script_.size() + 1));
  const std::vector<Job> jobs = scheduler_.TakeSubmitted();
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_EQ(jobs[0].sampling.seed, 7u);
  EXPECT_NE(jobs[1].sampling.seed, 7u);
  EXPECT_FALSE(jobs[0].shared_lengths.empty());
}

TEST_F(ServerTest, Logprobs) {
  const Json json = AskJson("/v1/chat/completions", Chat(R"("logprobs": true, "top_logprobs": 2)"));
  const Json& content = json.at("choices").at(0).at("logprobs").at("content");
  std::string text;
  for (const Json& token : content) {
    text += token.at("token");
    EXPECT_EQ(token.at("logprob"), -0.5);
    EXPECT_EQ(token.at("top_logprobs").size(), 2u);
    EXPECT_EQ(token.at("bytes").size(), token.at("token").get<std::string>().size());
  }
  EXPECT_EQ(text, "Hello, world!");
  EXPECT_TRUE(AskJson("/v1/chat/completions", Chat()).at("choices").at(0).at("logprobs").is_null());
}

TEST_F(ServerTest, Completions) {
  Say(" Paris is it");
  const Json json = AskJson("/v1/completions", R"({"prompt": ["France", "Spain"], "n": 1,
      "echo": true, "logprobs": 1, "stop": " is"})");
  ASSERT_EQ(json.at("choices").size(), 2u);
  EXPECT_EQ(json.at("object"), "text_completion");
  const Json& choice = json.at("choices").at(1);
  EXPECT_EQ(choice.at("text"), "Spain Paris");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  const Json& logprobs = choice.at("logprobs");
  std::string text;
  for (const Json& token : logprobs.at("tokens")) text += token;
  EXPECT_EQ(text, "Spain Paris");
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
  EXPECT_EQ(logprobs.at("token_logprobs").back(), -0.5);
  EXPECT_EQ(logprobs.at("text_offset").at(0), 0);

  std::string streamed;
  for (const Json& event :
       AskStream("/v1/completions", R"({"prompt": "Italy", "echo": true, "stream": true})")) {
    if (event != "[DONE]") streamed += event.at("choices").at(0).at("text");
  }
  EXPECT_EQ(streamed, "Italy Paris is it");
}

TEST_F(ServerTest, Responses) {
  const Json json = AskJson("/v1/responses", R"({"input": "Hi", "model": "fake"})");
  EXPECT_THAT(json.at("id").get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(json.at("status"), "completed");
  ASSERT_EQ(json.at("output").size(), 2u);
  EXPECT_EQ(json.at("output").at(0).at("content").at(0).at("text"), "Well.");
  EXPECT_EQ(json.at("output").at(1).at("content").at(0).at("text"), "Hello, world!");
  EXPECT_EQ(json.at("usage").at("output_tokens"), script_.size() + 1);

  const std::vector<Json> events = AskStream("/v1/responses", R"({"input": "Hi", "stream": true})");
  std::string text;
  for (const Json& event : events) {
    if (event.at("type") == "response.output_text.delta") text += event.at("delta");
  }
  EXPECT_EQ(text, "Hello, world!");
  EXPECT_EQ(events.back().at("type"), "response.completed");
  EXPECT_EQ(AskJson("/v1/responses", R"({"input": "Hi", "max_output_tokens": 2})").at("status"),
            "incomplete");
  EXPECT_EQ(
      AskJson("/v1/responses", R"({"input": "Hi", "store": true})", 400).at("error").at("param"),
      "store");
  EXPECT_THAT(Ask(Get("/v1/responses/resp_1")), StartsWith("HTTP/1.1 404"));
  scheduler_.FailNext("broken");
  EXPECT_EQ(AskStream("/v1/responses", R"({"input": "Hi", "stream": true})").back().at("type"),
            "error");
}

TEST_F(ServerTest, ErrorsHaveOpenAisShape) {
  const Json json = AskJson("/v1/chat/completions", Chat(R"("temperature": 300)"), 400);
  EXPECT_EQ(json.at("error").at("type"), "invalid_request_error");
  EXPECT_EQ(json.at("error").at("param"), "temperature");
  EXPECT_TRUE(json.at("error").at("code").is_null());
  EXPECT_EQ(AskJson("/v1/chat/completions", "{", 400).at("error").at("code"), "invalid_json");
  EXPECT_EQ(AskJson("/v1/chat/completions", Chat(R"("model": "gpt")"), 404).at("error").at("code"),
            "model_not_found");
  EXPECT_THAT(Ask(Get("/nothing")), StartsWith("HTTP/1.1 404"));
  const std::string wrong = Ask(Get("/v1/chat/completions"));
  EXPECT_THAT(wrong, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(wrong, HasSubstr("Allow: POST"));
  EXPECT_THAT(Ask(Post("/v1/models", "{}")), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask(Post("/v1/chat/completions", Chat(), "")), StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(Ask(Post("/tokenize", "{}", "Content-Type: text/plain\r\n")),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(Ask(Get("/health", "Host: evil.example\r\n")), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 403"));
}

TEST_F(ServerTest, TheQueueIsBounded) {
  scheduler_.Pause(true);
  const std::string response = Ask(Post("/v1/chat/completions", Chat(R"("n": 4)")));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(response, HasSubstr("Retry-After: "));
  EXPECT_THAT(response, HasSubstr("rate_limit_error"));
  // The three that had room are gone again.
  WaitFor([&] { return scheduler_.stats().running == 0; });
  scheduler_.Pause(false);
  EXPECT_THAT(Ask(Post("/v1/chat/completions", Chat())), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServerTest, FailuresOfTheModelAreErrorsWithoutDetails) {
  scheduler_.FailNext("/data/secret/model-00001: read failed");
  const std::string response = Ask(Post("/v1/chat/completions", Chat()));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(response, Not(HasSubstr("secret")));
  WaitFor([&] { return log().find("/data/secret/model-00001") != std::string::npos; });
  scheduler_.FailNext("broken");
  const std::vector<Json> events = AskStream("/v1/chat/completions", Chat(R"("stream": true)"));
  EXPECT_EQ(events.back().at("error").at("type"), "server_error");
}

TEST_F(ServerTest, AClientThatLeavesEndsItsJobs) {
  server_ = Server::Start(engine_, scheduler_, options_);
  scheduler_.Pause(true);
  for (const char* fields : {"\"stream\": true", "\"stream\": false"}) {
    TestClient client(server_->port());
    client.Send(Post("/v1/chat/completions", Chat(fields)));
    WaitFor([&] { return scheduler_.stats().running == 1; });
    client.Close();
    WaitFor([&] { return scheduler_.stats().running == 0; });
  }
  WaitFor([&] { return log().find("client left") != std::string::npos; });
}

TEST_F(ServerTest, ProgressComesWhileNothingElseDoes) {
  server_ = Server::Start(engine_, scheduler_, options_);
  scheduler_.Pause(true);
  TestClient client(server_->port());
  client.Send(Post("/v1/chat/completions", Chat("\"stream\": true")));
  size_t seen = 0;
  std::string all;
  while (seen < 3 && !client.closed()) {
    all += client.ReadUntil("\n\r\n");
    seen = 0;
    for (size_t i = 0; (i = all.find(": {\"phase\"", i)) != std::string::npos; ++i) ++seen;
  }
  EXPECT_THAT(all, HasSubstr("\"role\":\"assistant\""));
  scheduler_.Pause(false);
  EXPECT_THAT(client.ReadUntil("\r\n0\r\n\r\n"), HasSubstr("[DONE]"));
}

TEST_F(ServerTest, UnknownFieldsAreReported) {
  const std::string response =
      Ask(Post("/v1/chat/completions", Chat(R"("future": 1, "x\r\nEvil": 2)")));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(response, HasSubstr("X-Deltafin-Ignored: future, x??Evil\r\n"));
  WaitFor([&] { return log().find("future") != std::string::npos; });
  EXPECT_THAT(Ask(Post("/v1/chat/completions", Chat(R"("reasoning_effort": "medium")"))),
              HasSubstr("X-Deltafin-Note: reasoning_effort medium"));
}

TEST_F(ServerTest, ModelsTokensHealthMetrics) {
  options_.model_names = {"fake", "other/name"};
  EXPECT_THAT(Ask(Get("/v1/models")), HasSubstr("\"id\":\"fake\""));
  EXPECT_THAT(Ask(Get("/v1/models/other%2Fname")), HasSubstr("\"id\":\"other/name\""));
  EXPECT_THAT(Ask(Get("/v1/models/other/name")), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(Get("/v1/models/none")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(Get("/health")), HasSubstr("\"status\":\"ok\""));
  const Json tokens = AskJson("/tokenize", R"({"prompt": "Hello <|open|>"})");
  EXPECT_EQ(tokens.at("count"), tokens.at("tokens").size());
  EXPECT_EQ(AskJson("/detokenize", Json{{"tokens", tokens.at("tokens")}}.dump()).at("prompt"),
            "Hello <|open|>");
  EXPECT_GT(AskJson("/tokenize", Chat()).at("count"), 10);
  AskJson("/tokenize", "{}", 400);
  AskJson("/detokenize", R"({"tokens": [-1]})", 400);
  const std::string metrics = Ask(Get("/metrics"));
  EXPECT_THAT(metrics, HasSubstr("# TYPE deltafin_jobs_running gauge\ndeltafin_jobs_running 0\n"));
  EXPECT_THAT(metrics, ContainsRegex("deltafin_http_responses_total.status=\"404\". 1\n"));
}

TEST_F(ServerTest, ThePageIsStrict) {
  const std::string page = Ask(Get("/"));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self';"));
  const size_t tag = page.find("ETag: ") + 6;
  const std::string etag = page.substr(tag, page.find("\r\n", tag) - tag);
  TestClient client(server_->port());
  client.Send(Get("/index.html", "If-None-Match: " + etag + "\r\nConnection: close\r\n"));
  EXPECT_THAT(client.ReadToClose(), StartsWith("HTTP/1.1 304"));
  EXPECT_THAT(Ask(Get("/../server.cc")), StartsWith("HTTP/1.1 404"));
}

TEST_F(ServerTest, LiveEvents) {
  server_ = Server::Start(engine_, scheduler_, options_);
  scheduler_.Pause(true);
  TestClient watcher(server_->port());
  watcher.Send(Get("/api/live"));
  std::string all = watcher.ReadUntil("\"type\":\"state\"");
  TestClient asking(server_->port());
  asking.Send(Post("/v1/chat/completions", Chat("\"stream\": true")));
  all += watcher.ReadUntil("\"running\":1");
  scheduler_.Pause(false);
  asking.ReadUntil("[DONE]");
  all += watcher.ReadUntil("\"running\":0");
  all += watcher.ReadUntil("\n\r\n");
  const std::vector<Json> events = Events(all);
  EXPECT_EQ(events[0].at("type"), "hello");
  EXPECT_EQ(events[0].at("model"), "fake");
  EXPECT_EQ(events[0].at("plan").size(), 1u);
  bool saw_job = false;
  bool saw_picks = false;
  for (const Json& event : events) {
    if (event.at("type") != "state") continue;
    for (const Json& job : event.at("jobs")) {
      EXPECT_TRUE(job.at("phase") == "queued" || job.at("phase") == "decode");
      saw_job = true;
    }
    if (event.contains("picks")) {
      EXPECT_EQ(event.at("picks").at(0), (Json{{"layer", 1}, {"ids", {3, 5}}}));
      saw_picks = true;
    }
  }
  EXPECT_TRUE(saw_job);
  EXPECT_TRUE(saw_picks);
}

TEST_F(ServerTest, AKeyIsNeededWhereOneIsSet) {
  options_.api_key = "secret";
  EXPECT_THAT(Ask(Get("/v1/models")), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Ask(Get("/api/live")), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Ask(Get("/metrics")), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Ask(Get("/v1/models", "Authorization: Bearer wrong\r\n")),
              StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Ask(Get("/v1/models", "Authorization: Bearer secret\r\n")),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(Get("/")), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(Get("/health")), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServerTest, Cors) {
  options_.origins = {"https://chat.example"};
  const std::string preflight =
      Ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: "
          "https://chat.example\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(preflight, StartsWith("HTTP/1.1 204"));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n"));
  EXPECT_THAT(Ask(Get("/v1/models", "Origin: https://chat.example\r\n")),
              HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n"));
  EXPECT_THAT(Ask(Get("/v1/models", "Origin: https://evil.example\r\n")),
              StartsWith("HTTP/1.1 403"));
}

TEST_F(ServerTest, OthersCannotReachItWithoutAKey) {
  options_.http.host = "0.0.0.0";
  EXPECT_THROW(Server::Start(engine_, scheduler_, options_), Error);
  options_.insecure = true;
  EXPECT_NO_THROW(Server::Start(engine_, scheduler_, options_));
}

TEST_F(ServerTest, StopEndsWhatRuns) {
  server_ = Server::Start(engine_, scheduler_, options_);
  scheduler_.Pause(true);
  TestClient stream(server_->port());
  stream.Send(Post("/v1/chat/completions", Chat("\"stream\": true")));
  TestClient whole(server_->port());
  whole.Send(Post("/v1/chat/completions", Chat()));
  TestClient watcher(server_->port());
  watcher.Send(Get("/api/live"));
  WaitFor([&] { return scheduler_.stats().running == 2; });
  server_->Stop(0);
  EXPECT_THAT(stream.ReadToClose(), HasSubstr("the server is stopping"));
  EXPECT_THAT(whole.ReadToClose(), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(watcher.ReadToClose(), HasSubstr("0\r\n\r\n"));
}

TEST_F(ServerTest, StopLetsRunningAnswersFinish) {
  server_ = Server::Start(engine_, scheduler_, options_);
  scheduler_.Pause(true);
  TestClient client(server_->port());
  client.Send(Post("/v1/chat/completions", Chat()));
  WaitFor([&] { return scheduler_.stats().running == 1; });
  std::thread resume([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    scheduler_.Pause(false);
  });
  server_->Stop(20);
  resume.join();
  EXPECT_THAT(client.ReadToClose(), HasSubstr("Hello, world!"));
}

}  // namespace
}  // namespace deltafin
