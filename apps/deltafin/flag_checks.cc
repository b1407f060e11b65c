#include "flag_checks.h"

#include <charconv>
#include <sstream>
#include <system_error>

#include "hub/double_text.h"

namespace deltafin {
namespace {

std::string Expected(const std::string& what, const std::string& text) {
  return "expected " + what + ", got \"" + text + "\"";
}

template <typename Integer>
CLI::Validator WholeNumberOf(Integer min, Integer max) {
  using Limits = std::numeric_limits<Integer>;
  std::string what = "a whole number";
  std::string range;
  if (min != Limits::min() || max != Limits::max() || min == 0) {
    range = std::to_string(min) + " to " + std::to_string(max);
    what += " from " + range;
  }
  return CLI::Validator(
      [=](std::string& text) {
        Integer value = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc() || stop != end || value < min || value > max) {
          return Expected(what, text);
        }
        text = std::to_string(value);
        return std::string();
      },
      range);
}

CLI::Validator NumberOf(const std::string& what, const std::string& range,
                        const std::function<bool(double)>& is_good) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const auto [stop, error] = DoubleFromText(text, value);
        const bool is_number = error == std::errc() && stop == text.data() + text.size();
        return is_number && is_good(value) ? std::string() : Expected(what, text);
      },
      range);
}

}  // namespace

CLI::Validator WholeNumber(int64_t min, int64_t max) { return WholeNumberOf(min, max); }

CLI::Validator SeedNumber() {
  return WholeNumberOf<uint64_t>(0, std::numeric_limits<uint64_t>::max()).description("");
}

CLI::Validator Number() {
  return NumberOf("a number", "", [](double) { return true; });
}

CLI::Validator Number(double min, double max) {
  std::ostringstream range;
  range << min << " to " << max;
  return NumberOf("a number from " + range.str(), range.str(),
                  [=](double value) { return value >= min && value <= max; });
}

void AllowRepeats(CLI::Option* option) {
  option->expected(1)->allow_extra_args(false)->multi_option_policy(
      CLI::MultiOptionPolicy::TakeAll);
}

void RefuseEmptyValues(CLI::App& app) {
  const auto every = [](const auto*) { return true; };
  for (CLI::Option* option : app.get_options(every)) {
    const bool takes_value = option->get_expected_max() > 0 && option->get_type_size_max() > 0;
    if (!takes_value || option->get_positional() || option->check_name("--system")) continue;
    option->check([](const std::string& text) {
      return text.empty() ? "expected a value, got an empty one" : std::string();
    });
  }
  for (CLI::App* command : app.get_subcommands(every)) RefuseEmptyValues(*command);
}

}  // namespace deltafin
