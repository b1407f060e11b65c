#include "server/chat_writer.h"

#include <iterator>
#include <utility>

#include "server/logprobs_json.h"

namespace deltafin {

ChatWriter::ChatWriter(const Tokenizer& tokenizer, ChatWriterOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      choices_(options_.num_choices),
      usage_(options_.num_choices) {}

// ---- chunks ----

Json ChatWriter::Chunk() const {
  Json chunk = HeadingJson(options_.heading, "chat.completion.chunk");
  chunk["choices"] = Json::array();
  if (options_.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

Json ChatWriter::ChoiceJson(size_t choice, Json delta, Json logprobs, Json finish_reason) const {
  return {{"index", choice},
          {"delta", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish_reason)}};
}

std::string ChatWriter::BeginStream() {
  std::string events;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Json chunk = Chunk();
    chunk["choices"].push_back(
        ChoiceJson(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
    events += ServerSentEvent(chunk);
  }
  return events;
}

const std::string& ChatWriter::CallId(size_t choice, int index) {
  std::vector<std::string>& ids = choices_[choice].call_ids;
  while (ids.size() <= static_cast<size_t>(index)) ids.push_back(RandomId("call_"));
  return ids[static_cast<size_t>(index)];
}

std::string ChatWriter::Piece(size_t choice, const AnswerPiece& piece) {
  Json delta = Json::object();
  if (!piece.reasoning.empty()) delta["reasoning_content"] = piece.reasoning;
  if (!piece.content.empty()) delta["content"] = piece.content;
  for (const ToolCallPiece& call : piece.call_pieces) {
    Json json{{"index", call.index}};
    if (!call.name.empty()) {
      json["id"] = CallId(choice, call.index);
      json["type"] = "function";
      json["function"]["name"] = call.name;
    }
    json["function"]["arguments"] = call.arguments;
    delta["tool_calls"].push_back(std::move(json));
  }
  if (delta.empty() && piece.tokens.empty()) return {};
  Json logprobs;
  if (options_.with_logprobs && !piece.tokens.empty()) {
    logprobs = {{"content", ChatLogprobs(tokenizer_, piece.tokens)}, {"refusal", nullptr}};
  }
  Json chunk = Chunk();
  chunk["choices"].push_back(ChoiceJson(choice, std::move(delta), std::move(logprobs), nullptr));
  return ServerSentEvent(chunk);
}

std::string ChatWriter::End(size_t choice, const AnswerEnd& end) {
  usage_.Add(choice, end);
  Json chunk = Chunk();
  chunk["choices"].push_back(ChoiceJson(choice, Json::object(), nullptr, end.finish_reason));
  chunk["timings"] = TimingsJson(end);
  return ServerSentEvent(chunk);
}

std::string ChatWriter::EndStream() {
  std::string events;
  if (options_.include_usage) {
    Json chunk = Chunk();
    chunk["usage"] = usage_.json();
    events += ServerSentEvent(chunk);
  }
  return events + "data: [DONE]\n\n";
}

// ---- whole answers ----

void ChatWriter::Collect(size_t choice, AnswerPiece piece) {
  AnswerPiece& all = choices_[choice].all;
  all.reasoning += piece.reasoning;
  all.content += piece.content;
  std::move(piece.finished_calls.begin(), piece.finished_calls.end(),
            std::back_inserter(all.finished_calls));
  std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(all.tokens));
}

void ChatWriter::CollectEnd(size_t choice, const AnswerEnd& end) {
  usage_.Add(choice, end);
  choices_[choice].end = end;
}

Json ChatWriter::MessageJson(size_t choice) {
  const AnswerPiece& all = choices_[choice].all;
  Json message{{"role", "assistant"}};
  const bool has_calls = !all.finished_calls.empty();
  message["content"] = all.content.empty() && has_calls ? Json() : Json(all.content);
  if (options_.thinking) message["reasoning_content"] = all.reasoning;
  message["refusal"] = nullptr;
  for (const ToolCall& call : all.finished_calls) {
    message["tool_calls"].push_back(
        {{"id", CallId(choice, call.index)},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

Json ChatWriter::Whole() {
  Json json = HeadingJson(options_.heading, "chat.completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Json logprobs;
    if (options_.with_logprobs) {
      logprobs = {{"content", ChatLogprobs(tokenizer_, choices_[i].all.tokens)},
                  {"refusal", nullptr}};
    }
    json["choices"].push_back({{"index", i},
                               {"message", MessageJson(i)},
                               {"logprobs", std::move(logprobs)},
                               {"finish_reason", choices_[i].end.finish_reason}});
  }
  json["usage"] = usage_.json();
  json["timings"] = TimingsJson(choices_.front().end);
  return json;
}

}  // namespace deltafin
