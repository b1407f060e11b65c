// GET /metrics: counters in the text format of Prometheus.
#pragma once

#include <string>

#include "deltafin/engine.h"
#include "deltafin/scheduler.h"
#include "server/http_server.h"

namespace deltafin {

std::string MetricsText(const Engine& engine, const SchedulerStats& scheduler,
                        const HttpServerStats& http);

}  // namespace deltafin
