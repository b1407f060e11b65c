#include "server/responses_writer.h"

#include <algorithm>
#include <utility>

namespace deltafin {

ResponsesWriter::ResponsesWriter(ResponsesWriterOptions options) : options_(std::move(options)) {}

// ---- forms ----

Json ResponsesWriter::Part(const Item& item) {
  if (item.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", item.text}};
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json ResponsesWriter::ItemJson(const Item& item, bool with_text) {
  const Json content = with_text ? Json::array({Part(item)}) : Json::array();
  switch (item.kind) {
    case Kind::kReasoning:
      return {{"id", item.id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", content},
              {"status", item.status}};
    case Kind::kMessage:
      return {{"id", item.id},
              {"type", "message"},
              {"status", item.status},
              {"role", "assistant"},
              {"content", content}};
    case Kind::kCall:
      break;
  }
  return {{"id", item.id},           {"type", "function_call"}, {"status", item.status},
          {"call_id", item.call_id}, {"name", item.name},       {"arguments", item.text}};
}

Json ResponsesWriter::ResponseJson() const {
  const bool is_cut = std::string_view(status_) == "incomplete";
  Json json{{"id", options_.heading.id},
            {"object", "response"},
            {"created_at", options_.heading.created},
            {"status", status_},
            {"background", false},
            {"error", nullptr},
            {"incomplete_details", is_cut ? Json{{"reason", "max_output_tokens"}} : Json()},
            {"model", options_.heading.model},
            {"output", Json::array()},
            {"usage", usage_}};
  for (const Item& item : items_) json["output"].push_back(ItemJson(item, true));
  json.update(options_.settings);
  if (!timings_.is_null()) json["timings"] = timings_;
  return json;
}

// Where the last item is.
Json ResponsesWriter::Place() const {
  const Item& item = items_.back();
  Json place{{"item_id", item.id}, {"output_index", items_.size() - 1}};
  if (item.kind != Kind::kCall) place["content_index"] = 0;
  return place;
}

void ResponsesWriter::Emit(const char* type, const Json& fields) {
  if (!streams_) return;
  Json event{{"type", type}, {"sequence_number", num_events_++}};
  event.update(fields);
  events_.append("event: ").append(type).append("\n").append(ServerSentEvent(event));
}

std::string ResponsesWriter::TakeEvents() { return std::exchange(events_, {}); }

// ---- items ----

bool ResponsesWriter::IsOpen(Kind kind) const {
  return !items_.empty() && items_.back().kind == kind &&
         std::string_view(items_.back().status) == "in_progress";
}

ResponsesWriter::Item& ResponsesWriter::Open(Kind kind) {
  if (IsOpen(kind)) return items_.back();
  Close("completed");
  Item& item = items_.emplace_back();
  item.kind = kind;
  item.id = RandomId(kind == Kind::kReasoning ? "rs_" : "msg_");
  Emit("response.output_item.added",
       {{"output_index", items_.size() - 1}, {"item", ItemJson(item, false)}});
  Json fields = Place();
  fields["part"] = Part(item);
  Emit("response.content_part.added", fields);
  return item;
}

void ResponsesWriter::OpenCall(int index, const std::string& name) {
  Close("completed");
  Item& item = items_.emplace_back();
  item.kind = Kind::kCall;
  item.id = RandomId("fc_");
  item.call_id = RandomId("call_");
  item.name = name;
  item.call_index = index;
  Emit("response.output_item.added",
       {{"output_index", items_.size() - 1}, {"item", ItemJson(item, true)}});
}

void ResponsesWriter::AddText(const char* event, const std::string& text) {
  if (text.empty()) return;
  Item& item = items_.back();
  item.text += text;
  if (!streams_) return;
  Json fields = Place();
  fields["delta"] = text;
  if (item.kind == Kind::kMessage) fields["logprobs"] = Json::array();
  Emit(event, fields);
}

void ResponsesWriter::Close(const char* status) {
  if (items_.empty() || !IsOpen(items_.back().kind)) return;
  Item& item = items_.back();
  item.status = status;
  Json fields = Place();
  if (item.kind == Kind::kCall) {
    fields["name"] = item.name;
    fields["arguments"] = item.text;
    Emit("response.function_call_arguments.done", fields);
  } else {
    Json whole = fields;
    whole["text"] = item.text;
    if (item.kind == Kind::kMessage) whole["logprobs"] = Json::array();
    Emit(item.kind == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
         whole);
    fields["part"] = Part(item);
    Emit("response.content_part.done", fields);
  }
  Emit("response.output_item.done",
       {{"output_index", items_.size() - 1}, {"item", ItemJson(item, true)}});
}

// ---- what comes ----

void ResponsesWriter::Take(const AnswerPiece& piece) {
  if (!piece.reasoning.empty()) {
    Open(Kind::kReasoning);
    AddText("response.reasoning_text.delta", piece.reasoning);
  }
  if (!piece.content.empty()) {
    Open(Kind::kMessage);
    AddText("response.output_text.delta", piece.content);
  }
  for (const ToolCallPiece& call : piece.call_pieces) {
    if (!IsOpen(Kind::kCall) || items_.back().call_index != call.index) {
      OpenCall(call.index, call.name);
    }
    AddText("response.function_call_arguments.delta", call.arguments);
  }
  for (const ToolCall& call : piece.finished_calls) {
    const auto item = std::find_if(items_.begin(), items_.end(), [&](const Item& one) {
      return one.kind == Kind::kCall && one.call_index == call.index;
    });
    if (item == items_.end()) continue;  // a call without pieces: there is none
    item->text = call.arguments;
    if (item == items_.end() - 1) Close("completed");
  }
}

void ResponsesWriter::TakeEnd(const AnswerEnd& end) {
  const bool is_cut = end.finish_reason == "length";
  status_ = is_cut ? "incomplete" : "completed";
  // A call that did not end is none that can be run.
  Close(is_cut || IsOpen(Kind::kCall) ? "incomplete" : "completed");
  const bool has_answer = std::any_of(
      items_.begin(), items_.end(), [](const Item& item) { return item.kind != Kind::kReasoning; });
  if (!has_answer && !is_cut) {
    Open(Kind::kMessage);
    Close("completed");
  }
  usage_ = {{"input_tokens", end.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", end.cached_tokens}}},
            {"output_tokens", end.new_tokens},
            {"output_tokens_details", {{"reasoning_tokens", end.reasoning_tokens}}},
            {"total_tokens", end.prompt_tokens + end.new_tokens}};
  timings_ = TimingsJson(end);
}

// ---- streams ----

std::string ResponsesWriter::BeginStream() {
  streams_ = true;
  Emit("response.created", {{"response", ResponseJson()}});
  Emit("response.in_progress", {{"response", ResponseJson()}});
  return TakeEvents();
}

std::string ResponsesWriter::Piece(size_t, const AnswerPiece& piece) {
  Take(piece);
  return TakeEvents();
}

std::string ResponsesWriter::End(size_t, const AnswerEnd& end) {
  TakeEnd(end);
  return TakeEvents();
}

std::string ResponsesWriter::EndStream() {
  const std::string type = std::string("response.") + status_;
  Emit(type.c_str(), {{"response", ResponseJson()}});
  return TakeEvents();
}

std::string ResponsesWriter::ErrorEvent(const ApiError& error) {
  const Json json = ErrorJson(error);
  const Json& what = json.at("error");
  Emit("error", {{"code", what.at("code").is_null() ? what.at("type") : what.at("code")},
                 {"message", what.at("message")},
                 {"param", what.at("param")}});
  return TakeEvents();
}

// ---- whole answers ----

void ResponsesWriter::Collect(size_t, AnswerPiece piece) { Take(piece); }

void ResponsesWriter::CollectEnd(size_t, const AnswerEnd& end) { TakeEnd(end); }

Json ResponsesWriter::Whole() { return ResponseJson(); }

}  // namespace deltafin
