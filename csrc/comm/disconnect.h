// Disconnects ranks: a rank that no longer uses the others' memory tells its neighbours over the
// sockets, and frees its own memory when all ranks have done so.
#pragma once

#include "comm/rendezvous.h"

namespace ringkern {

// Sends goodbyes to both neighbours and waits for theirs, as often as it takes for one to come from
// the farthest rank. Returns false if one did not come within `timeout`, or a neighbour ended too
// early: the state of the ranks behind it is then unknown. With at most three ranks there are none
// behind it, and an ended rank counts as disconnected.
bool disconnect(const Neighbours& neighbours, int ranks, Milliseconds timeout);

}  // namespace ringkern
