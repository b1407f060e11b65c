#include "deltafin/json.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "base/format.h"
#include "io/quote.h"

namespace deltafin {
namespace {

// Lines and columns count from 1, columns in bytes. `position` bytes were read when it went wrong.
[[noreturn]] void Fail(std::string_view text, const std::string& name, size_t position,
                       const std::string& problem) {
  const std::string_view before = text.substr(0, position == 0 ? 0 : position - 1);
  const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
  const size_t line_begin = before.rfind('\n') + 1;  // 0 on the first line: npos + 1
  throw Error(ErrorCode::kCorrupt, format("{}: not valid JSON at line {}, column {}: {}", name,
                                          line, before.size() - line_begin + 1, problem));
}

// What nlohmann's message says after its own prefix "[json.exception...] parse error at ...: ".
std::string ProblemOf(const nlohmann::detail::exception& e) {
  std::string_view what = e.what();
  what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
  if (what.starts_with("parse error at")) {
    what.remove_prefix(std::min(what.size(), what.find(": ") + 2));
  }
  return Escape(what, 300);
}

// Builds the document from the parser's events. nlohmann's own builder looks up every key among
// the ones before it: quadratic, so that a request of some megabytes would block a server.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& name, size_t max_depth,
          BigIntegers big_integers)
      : text_(text), name_(name), max_depth_(max_depth), big_integers_(big_integers) {}

  Json TakeRoot() { return std::move(root_); }

  bool null() override { return Add(Json()); }
  bool boolean(bool value) override { return Add(Json(value)); }
  bool number_integer(number_integer_t value) override { return Add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(Json(value)); }
  bool number_float(number_float_t value, const string_t& digits) override {
    const bool is_integer = digits.find_first_of(".eE") == string_t::npos;
    if (!is_integer || big_integers_ == BigIntegers::kRounded) return Add(Json(value));
    return Add(Json::binary({digits.begin(), digits.end()}));
  }
  bool string(string_t& value) override { return Add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool key(string_t& value) override {
    open_.back().key = std::move(value);
    return true;
  }
  bool end_object() override {
    KeepLastOfEachKey(open_.back().value.get_ref<Json::object_t&>());
    return Close();
  }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    Fail(text_, name_, position, ProblemOf(e));
  }

 private:
  using Members = std::vector<std::pair<const std::string, Json>>;  // base of Json::object_t

  struct Container {
    Json value;
    std::string key;  // of the member that comes next, in an object
  };

  bool Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Container& parent = open_.back(); parent.value.is_array()) {
      parent.value.push_back(std::move(value));
    } else {
      Members& members = parent.value.get_ref<Json::object_t&>();
      members.emplace_back(std::move(parent.key), std::move(value));
    }
    return true;
  }

  bool Open(Json value) {
    if (open_.size() == max_depth_) {
      throw Error(ErrorCode::kCorrupt,
                  format("{}: JSON is nested more than {} levels deep", name_, max_depth_));
    }
    open_.push_back({std::move(value), {}});
    return true;
  }

  bool Close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return Add(std::move(value));
  }

  // A repeated key stays where it stood first and takes the last value.
  static void KeepLastOfEachKey(Members& members) {
    std::vector<size_t> order(members.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto same_key = [&](size_t a, size_t b) { return members[a].first == members[b].first; };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return members[a].first < members[b].first; });
    if (std::adjacent_find(order.begin(), order.end(), same_key) == order.end()) return;

    std::vector<bool> is_first(members.size(), true);
    for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      for (end = begin + 1; end < order.size() && same_key(order[begin], order[end]); ++end) {
        is_first[order[end]] = false;
      }
      if (end - begin > 1) members[order[begin]].second = std::move(members[order[end - 1]].second);
    }
    Members kept;
    for (size_t i = 0; i < members.size(); ++i) {
      if (is_first[i]) kept.emplace_back(members[i].first, std::move(members[i].second));
    }
    members.swap(kept);
  }

  const std::string_view text_;
  const std::string& name_;
  const size_t max_depth_;
  const BigIntegers big_integers_;
  Json root_;
  std::vector<Container> open_;
};

}  // namespace

Json ParseJson(std::string_view text, const std::string& name, int max_depth,
               BigIntegers big_integers) {
  // nlohmann takes a zero byte for the end of the text and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    Fail(text, name, zero + 1, "zero byte");
  }
  Builder builder(text, name, static_cast<size_t>(std::max(max_depth, 0)), big_integers);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.TakeRoot();
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace deltafin
