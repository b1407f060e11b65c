#include "server/completion_writer.h"

#include <iterator>
#include <utility>

#include "server/logprobs_json.h"

namespace deltafin {

CompletionWriter::CompletionWriter(const Tokenizer& tokenizer, CompletionWriterOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      choices_(options_.num_prompts * options_.choices_per_prompt),
      usage_(options_.choices_per_prompt) {}

Json CompletionWriter::ChoiceJson(size_t choice, const AnswerPiece& piece,
                                  Json finish_reason) const {
  Json logprobs;
  if (options_.with_logprobs) logprobs = CompletionLogprobs(tokenizer_, piece.tokens);
  return {{"index", choice},
          {"text", piece.content},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish_reason)}};
}

std::string CompletionWriter::Chunk(Json choices, const Json& timings) const {
  Json chunk = HeadingJson(options_.heading, "text_completion");
  chunk["choices"] = std::move(choices);
  if (options_.include_usage) chunk["usage"] = nullptr;
  if (!timings.is_null()) chunk["timings"] = timings;
  return ServerSentEvent(chunk);
}

std::string CompletionWriter::Piece(size_t choice, const AnswerPiece& piece) {
  if (piece.content.empty() && piece.tokens.empty()) return {};
  return Chunk(Json::array({ChoiceJson(choice, piece, nullptr)}), nullptr);
}

std::string CompletionWriter::End(size_t choice, const AnswerEnd& end) {
  usage_.Add(choice, end);
  return Chunk(Json::array({ChoiceJson(choice, {}, end.finish_reason)}), TimingsJson(end));
}

std::string CompletionWriter::EndStream() {
  std::string events;
  if (options_.include_usage) {
    Json chunk = HeadingJson(options_.heading, "text_completion");
    chunk["choices"] = Json::array();
    chunk["usage"] = usage_.json();
    events += ServerSentEvent(chunk);
  }
  return events + "data: [DONE]\n\n";
}

void CompletionWriter::Collect(size_t choice, AnswerPiece piece) {
  AnswerPiece& all = choices_[choice].all;
  all.content += piece.content;
  std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(all.tokens));
}

void CompletionWriter::CollectEnd(size_t choice, const AnswerEnd& end) {
  usage_.Add(choice, end);
  choices_[choice].end = end;
}

Json CompletionWriter::Whole() {
  Json json = HeadingJson(options_.heading, "text_completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    json["choices"].push_back(ChoiceJson(i, choices_[i].all, choices_[i].end.finish_reason));
  }
  json["usage"] = usage_.json();
  json["timings"] = TimingsJson(choices_.front().end);
  return json;
}

}  // namespace deltafin
