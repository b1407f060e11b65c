// How often a token picks an expert that the token before it picked too, and how to get that.
#pragma once

namespace deltafin {

// In [0, 1]: how much the router of a made-up layer listens to the context rather than to the
// token, so that consecutive tokens share the part `reuse` of their picks when each picks the part
// `picked` (in (0, 1]) of the experts. The ends of what is possible for a `reuse` beyond them.
double ContextShare(double reuse, double picked);

// The most that can be had.
double MaxReuse(double picked);

}  // namespace deltafin
