// Connects ranks to a ring: each rank finds its neighbours through the store, connects to them over
// Unix sockets, and offers them its memory; then all agree that all have succeeded. Either every
// rank has a ring, or every rank gets an error that quotes the rank that failed.
#pragma once

#include <functional>
#include <vector>

#include "comm/handshake.h"
#include "comm/socket.h"

namespace ringkern {

struct Place {
  int rank = 0, size = 1;
  int next = 0, prev = 0;
  RankNames names{};
};

// The connection to a neighbour. It stays open for as long as both ranks hold it; its end of file
// tells that the neighbour is gone.
struct Neighbour {
  int rank = -1;
  int pid = 0;  // a label: in another pid namespace it means nothing here
  Fd socket;
};
struct Neighbours {
  Neighbour next, prev;
};

using MakeWord = std::function<std::string(const std::vector<std::string>& buses)>;
using Look = std::function<void(const std::string& waiting_for)>;
using Probe = std::function<void(const Id& session, const Look& look)>;
// Used if the terms depend on the devices of all ranks: all ranks derive the same terms from the
// same rooms.
struct Fitting {
  std::function<DeviceRoom()> room = nullptr;  // this rank's
  std::function<Terms(const std::vector<DeviceRoom>& rooms)> terms = nullptr;
};

// Joins the ring of the `place.size` ranks that call this with the same prefix. A ring of one has
// no neighbours: none of the functions is called.
//
// `fitting`, if any, returns this rank's room, and then the terms, once all ranks have published
// their rooms. `make_word` is called on rank 0 alone, with the bus of each rank's device
// (DeviceRoom; none on a CPU): it returns the settings of rank 0 that all ranks take. `make_offer`
// is called once this rank has published its address; the caller keeps the descriptors in the
// offer. `map` is called with the offers of all ranks, by rank (this rank's is empty), and with the
// word of rank 0. The descriptors in these offers are closed before this function returns. `probe`,
// if any, is called next, with the session, which is equal on all ranks, and a function to call
// periodically, which throws once another rank has given up or the time is over. An exception from
// any of them is reported to all ranks and rethrown.
// Any other failure is a RendezvousError (a rank did not come, has another version, or failed), a
// PeerLostError (a rank has died, or left) or a TransportError (a rank cannot be reached).
//
// Waits at most `timeout`, plus 2 s in which a rank that gives up learns who failed first. The
// store is called at least every 100 ms meanwhile: any exception but TimeoutError ends the wait.
Neighbours join_ring(
    Store& store, const std::string& prefix, const Place& place, const Terms& terms,
    Milliseconds timeout, const MakeWord& make_word, const std::function<Offer()>& make_offer,
    const std::function<void(const std::vector<Offer>& offers, const std::string& word)>& map,
    const Probe& probe = nullptr, const Fitting& fitting = {});

// Throws TransportError unless the process at the other end of the socket has the same user as this
// one: only processes of one user share memory. The error names this rank `here` ("rank 0") and the
// other one `name` ("rank 1 (pid 4711)").
void check_same_user(const Fd& socket, const std::string& here, const std::string& name);

// Returns a prefix for the keys of one ring: the store may still hold those of an earlier ring of
// the same name and size. The n-th call of each rank returns the same prefix: a late rank of a
// failed ring gets its error, and meets the others in the next one.
std::string unique_prefix(Store& store, const std::string& name, const Place& place);

}  // namespace ringkern
