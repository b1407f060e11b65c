// Addresses on the hub.
#pragma once

#include <string>
#include <string_view>

#include "deltafin/hub.h"

namespace deltafin {

// "https://huggingface.co/moonshotai/Kimi-K3/resolve/REVISION/FILE". Throws Error(kInvalidArgument)
// for an endpoint that is not an address.
std::string HubUrl(const HubOptions& options, const std::string& file);
// "https://huggingface.co/moonshotai/Kimi-K3", for people.
std::string HubName(const HubOptions& options);
// Same scheme, host and port: where a token may go.
bool SameOrigin(const std::string& url, const std::string& other);
// `location` as a header gives it, absolute or relative to `base`; "" when it makes no address of
// http or https.
std::string ResolveLocation(const std::string& base, const std::string& location);
// Without query, user and password: fit for a message.
std::string PrintableUrl(const std::string& url);

}  // namespace deltafin
