// deltafin info: what a model is and what it takes.
#include <cstdio>
#include <iostream>

#include "command_line.h"
#include "deltafin/devices.h"
#include "deltafin/json.h"
#include "environment.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct InfoOptions {
  ModelOptions model;
  bool json = false;
  bool plan = false;
  bool devices = false;
};

double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024 * 1024); }

void PrintJson(const Engine& engine) {
  const ModelInfo& i = engine.info();
  Json plan = Json::array();
  for (const PlanLine& line : engine.plan()) {
    plan.push_back({{"what", line.what}, {"bytes", line.bytes}, {"note", line.note}});
  }
  std::cout << DumpJson({{"model", i.name},
                         {"dir", i.dir},
                         {"layers", i.num_layers},
                         {"mla_layers", i.num_mla_layers},
                         {"hidden_size", i.hidden_size},
                         {"vocab_size", i.vocab_size},
                         {"experts", i.num_experts},
                         {"experts_per_token", i.experts_per_token},
                         {"context_tokens", i.context_tokens},
                         {"max_context_tokens", i.max_context_tokens},
                         {"shards", i.num_shards},
                         {"total_bytes", i.total_bytes},
                         {"spine_bytes", i.spine_bytes},
                         {"expert_bytes", i.expert_bytes},
                         {"bytes_per_token", i.bytes_per_token},
                         {"plan", plan}})
            << "\n";
}

void PrintPlan(const Engine& engine) {
  for (const PlanLine& line : engine.plan()) {
    std::printf("  %-22s %10.3f GiB  %s\n", line.what.c_str(), Gib(line.bytes), line.note.c_str());
  }
}

void PrintTable(const Engine& engine) {
  const ModelInfo& i = engine.info();
  for (const std::string& line : engine.Describe()) std::cout << line << "\n";
  const auto row = [](const char* what, const std::string& value) {
    std::printf("  %-22s %s\n", what, value.c_str());
  };
  const auto bytes = [](uint64_t b) { return std::to_string(b) + " bytes"; };
  std::printf("\nmodel %s\n", i.dir.c_str());
  row("layers",
      std::to_string(i.num_layers) + ", of them " + std::to_string(i.num_mla_layers) + " MLA");
  row("hidden size", std::to_string(i.hidden_size));
  row("vocabulary", std::to_string(i.vocab_size));
  row("experts per layer",
      std::to_string(i.num_experts) + ", " + std::to_string(i.experts_per_token) + " per token");
  row("context", std::to_string(i.context_tokens) + " planned, " +
                     std::to_string(i.max_context_tokens) + " at most");
  row("shards", std::to_string(i.num_shards) + ", " + bytes(i.total_bytes));
  row("spine", bytes(i.spine_bytes));
  row("one expert", bytes(i.expert_bytes));
  row("weights per token", bytes(i.bytes_per_token));
  std::printf("\nmemory plan\n");
  PrintPlan(engine);
}

void PrintDevices(bool json) {
  std::string note;
  const std::vector<ComputeDevice> devices = ListDevices(&note);
  if (!note.empty()) std::cerr << note << "\n";
  if (json) {
    Json list = Json::array();
    for (const ComputeDevice& device : devices) {
      list.push_back({{"device", device.flag},
                      {"name", device.name},
                      {"features", device.features},
                      {"memory_bytes", device.memory_bytes},
                      {"free_bytes", device.free_bytes},
                      {"usable", device.usable},
                      {"self_test", device.verdict}});
    }
    std::cout << DumpJson({{"devices", list}}) << "\n";
    return;
  }
  for (const ComputeDevice& device : devices) {
    std::printf("%-6s %s\n       %s\n", device.flag.c_str(), device.name.c_str(),
                device.features.c_str());
    if (device.memory_bytes > 0) {
      std::printf("       %.1f GiB of memory, %.1f free\n", Gib(device.memory_bytes),
                  Gib(device.free_bytes));
    }
    std::printf("       %s%s\n", device.usable ? "" : "cannot be used: ", device.verdict.c_str());
  }
}

}  // namespace

void AddInfoCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("info", "The model, its sizes and the memory plan");
  auto options = std::make_shared<InfoOptions>();
  AddModelOptions(*command, &options->model);
  CLI::Option* json = command->add_flag("--json", options->json, "One JSON object");
  command->add_flag("--plan", options->plan, "Only the memory plan")->excludes(json);
  command
      ->add_flag("--devices", options->devices,
                 "What this machine can compute with, each tested; no model is needed")
      ->excludes("--plan");
  command->callback([options, status] {
    if (options->devices) {
      PrintDevices(options->json);
      *status = 0;
      return;
    }
    for (const std::string& notice : EnvironmentNotices()) std::cerr << notice << "\n";
    const auto engine = Engine::Open(ToEngineOptions(options->model));
    if (options->json) {
      PrintJson(*engine);
    } else if (options->plan) {
      PrintPlan(*engine);
    } else {
      PrintTable(*engine);
    }
    *status = 0;
  });
}

}  // namespace deltafin
