// How ranks part: a rank that no longer uses the others' memory says so over the sockets to its
// neighbours, and gives its own back when all have said the same.
#pragma once

#include "comm/rendezvous.h"

namespace ringkern {

// Says goodbye to both neighbours and waits for theirs, as often as it takes the word to come from
// the farthest rank. False if they did not say it within `timeout`, or one ended before it had said
// all: then nothing is known of those behind it. With at most three ranks there are none behind it,
// and an ended rank counts as disconnected.
bool disconnect(const Neighbours& neighbours, int ranks, Milliseconds timeout);

}  // namespace ringkern
