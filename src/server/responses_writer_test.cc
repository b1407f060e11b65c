#include "server/responses_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

ResponsesWriter Writer() {
  return ResponsesWriter({{"resp_1", 12, "m", "f"}, {{"store", false}, {"top_p", 1.0}}});
}

// The events of a stream, whose names must be their types, numbered from 0.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  for (size_t begin = 0; begin < stream.size();) {
    const size_t end = stream.find("\n\n", begin);
    const std::string event = stream.substr(begin, end - begin);
    begin = end + 2;
    const size_t line = event.find('\n');
    Json json = ParseJson(event.substr(line + 7), "event");
    EXPECT_EQ(event.substr(0, line), "event: " + json.at("type").get<std::string>());
    EXPECT_EQ(event.substr(line, 7), "\ndata: ");
    EXPECT_EQ(json.at("sequence_number"), events.size());
    events.push_back(std::move(json));
  }
  return events;
}

std::vector<std::string> TypesOf(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event.at("type"));
  return types;
}

AnswerPiece Reasoning(const std::string& text) {
  AnswerPiece piece;
  piece.reasoning = text;
  return piece;
}
AnswerPiece Content(const std::string& text) {
  AnswerPiece piece;
  piece.content = text;
  return piece;
}
AnswerPiece CallPiece(int index, const std::string& name, const std::string& arguments) {
  AnswerPiece piece;
  piece.call_pieces.push_back({index, name, arguments});
  return piece;
}
AnswerEnd EndOf(const std::string& reason) {
  AnswerEnd end;
  end.finish_reason = reason;
  end.prompt_tokens = 10;
  end.cached_tokens = 4;
  end.new_tokens = 5;
  end.reasoning_tokens = 2;
  return end;
}

// The whole of the answer that these pieces make; a stream must end with the same but for its ids.
Json Whole(const std::vector<AnswerPiece>& pieces, const AnswerEnd& end,
           std::vector<Json>* events = nullptr) {
  ResponsesWriter collecting = Writer();
  ResponsesWriter streaming = Writer();
  std::string stream = streaming.BeginStream();
  for (const AnswerPiece& piece : pieces) {
    collecting.Collect(0, piece);
    stream += streaming.Piece(0, piece);
  }
  collecting.CollectEnd(0, end);
  stream += streaming.End(0, end);
  stream += streaming.EndStream();
  Json whole = collecting.Whole();
  const std::vector<Json> all = Events(stream);
  Json last = all.back().at("response");
  if (events != nullptr) *events = all;
  EXPECT_EQ(last.at("output").size(), whole.at("output").size());
  for (Json* response : {&whole, &last}) {
    for (Json& item : response->at("output")) {
      item["id"] = "";
      if (item.contains("call_id")) item["call_id"] = "";
    }
  }
  EXPECT_EQ(last, whole);
  return whole;
}

TEST(ResponsesWriterTest, ReasoningAndText) {
  std::vector<Json> events;
  const Json whole = Whole({Reasoning("I "), Reasoning("think."), Content("Hel"), Content("lo")},
                           EndOf("stop"), &events);
  EXPECT_EQ(whole.at("id"), "resp_1");
  EXPECT_EQ(whole.at("object"), "response");
  EXPECT_EQ(whole.at("created_at"), 12);
  EXPECT_EQ(whole.at("status"), "completed");
  EXPECT_TRUE(whole.at("incomplete_details").is_null());
  EXPECT_EQ(whole.at("store"), false);
  const Json& output = whole.at("output");
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output.at(0).at("type"), "reasoning");
  EXPECT_EQ(output.at(0).at("content").at(0).at("text"), "I think.");
  EXPECT_EQ(output.at(1).at("type"), "message");
  EXPECT_EQ(output.at(1).at("status"), "completed");
  EXPECT_EQ(output.at(1).at("content").at(0).at("text"), "Hello");
  EXPECT_EQ(whole.at("usage").at("input_tokens_details").at("cached_tokens"), 4);
  EXPECT_EQ(whole.at("usage").at("output_tokens_details").at("reasoning_tokens"), 2);
  EXPECT_EQ(whole.at("usage").at("total_tokens"), 15);
  EXPECT_THAT(TypesOf(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.reasoning_text.delta",
                          "response.reasoning_text.delta", "response.reasoning_text.done",
                          "response.content_part.done", "response.output_item.done",
                          "response.output_item.added", "response.content_part.added",
                          "response.output_text.delta", "response.output_text.delta",
                          "response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0].at("response").at("status"), "in_progress");
  EXPECT_TRUE(events[0].at("response").at("output").empty());
  EXPECT_EQ(events[11].at("delta"), "Hel");
  EXPECT_EQ(events[11].at("output_index"), 1);
  EXPECT_EQ(events[11].at("item_id"), events[9].at("item").at("id"));
  EXPECT_EQ(events[13].at("text"), "Hello");
}

TEST(ResponsesWriterTest, Calls) {
  AnswerPiece last = CallPiece(1, "", "}");
  last.finished_calls.push_back({1, "g", "{}"});
  AnswerPiece first_end = CallPiece(0, "", "1}");
  first_end.finished_calls.push_back({0, "f", "{\"x\": 1}"});
  std::vector<Json> events;
  const Json whole = Whole({CallPiece(0, "f", "{\"x\": "), first_end, CallPiece(1, "g", "{"), last},
                           EndOf("tool_calls"), &events);
  const Json& output = whole.at("output");
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output.at(0).at("type"), "function_call");
  EXPECT_EQ(output.at(0).at("name"), "f");
  EXPECT_EQ(output.at(0).at("arguments"), "{\"x\": 1}");
  EXPECT_EQ(output.at(1).at("status"), "completed");
  EXPECT_THAT(
      TypesOf(events),
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.function_call_arguments.delta",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[2].at("item").at("arguments"), "");
  EXPECT_THAT(events[2].at("item").at("call_id").get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(events[5].at("arguments"), "{\"x\": 1}");
}

TEST(ResponsesWriterTest, WhatIsCutOffIsIncomplete) {
  const Json text = Whole({Content("Hel")}, EndOf("length"));
  EXPECT_EQ(text.at("status"), "incomplete");
  EXPECT_EQ(text.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(text.at("output").at(0).at("status"), "incomplete");
  const Json thought = Whole({Reasoning("I")}, EndOf("length"));
  EXPECT_EQ(thought.at("output").size(), 1u);
  const Json call = Whole({CallPiece(0, "f", "{\"x\"")}, EndOf("length"));
  EXPECT_EQ(call.at("output").at(0).at("status"), "incomplete");
  // A message that ended within a call.
  EXPECT_EQ(Whole({CallPiece(0, "f", "")}, EndOf("stop")).at("output").at(0).at("status"),
            "incomplete");
}

TEST(ResponsesWriterTest, AnEmptyAnswerIsAMessageAllTheSame) {
  const Json whole = Whole({Reasoning("Hm.")}, EndOf("stop"));
  ASSERT_EQ(whole.at("output").size(), 2u);
  EXPECT_EQ(whole.at("output").at(1).at("content").at(0).at("text"), "");
}

TEST(ResponsesWriterTest, ErrorsAreEvents) {
  ResponsesWriter writer = Writer();
  (void)writer.BeginStream();
  const std::string event = writer.ErrorEvent(ApiError(500, "it failed"));
  EXPECT_THAT(event, StartsWith("event: error\ndata: "));
  const Json json = ParseJson(event.substr(event.find("data: ") + 6), "event");
  EXPECT_EQ(json.at("type"), "error");
  EXPECT_EQ(json.at("message"), "it failed");
  EXPECT_EQ(json.at("code"), "server_error");
  EXPECT_EQ(json.at("sequence_number"), 2);
}

}  // namespace
}  // namespace deltafin
