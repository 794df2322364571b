// How neighbours part: a rank that no longer uses its neighbours' memory says so over the socket,
// and gives its own back when both have said the same.
#pragma once

#include "comm/rendezvous.h"

namespace ringkern {

// Says goodbye to both neighbours and waits for theirs, or for the end of their processes. False if
// one did neither within `timeout`.
bool part_from(const Neighbours& neighbours, Milliseconds timeout);

}  // namespace ringkern
