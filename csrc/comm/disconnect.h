// Disconnects ranks: a rank that no longer uses the others' memory tells its neighbours over the
// sockets, and frees its own memory when all ranks have done so.
#pragma once

#include "comm/rendezvous.h"

namespace ringkern {

// Sends goodbyes to both neighbours and waits for theirs, in as many rounds as there are hops to
// the farthest rank. Returns false if a goodbye did not come within `timeout`, or a neighbour ended
// too early: the state of the ranks behind it is then unknown. With at most three ranks no rank is
// behind a neighbour, and an ended rank counts as disconnected.
bool disconnect(const Neighbours& neighbours, int ranks, Milliseconds timeout);

}  // namespace ringkern
