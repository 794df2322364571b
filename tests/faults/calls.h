// Calls of a rank, and their outcomes.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "cpu/shm.h"
#include "cpu/threads.h"
#include "drawn.h"
#include "shared.h"
#include "team.h"

namespace ringkern::faults {

// Makes the device that csrc/torch makes for CPU tensors, of ranks with two threads. `threads`:
// given if ranks are threads that share one mapping, which ThreadSanitizer needs; no tensor is then
// reduced in place.
inline Device cpu_device(int rank, int ranks, Milliseconds timeout,
                         const std::shared_ptr<cpu::LocalMemory>& threads = nullptr) {
  Device device;
  device.name = device.terms.device = "cpu";
  device.terms.geometry = cpu::default_geometry();
  constexpr int kChannels = 2;
  device.terms.segment_bytes = cpu::segment_bytes(device.terms.geometry, kChannels);
  device.probe = cpu::probe_room(device.terms.geometry);
  const auto arenas = threads ? nullptr : std::make_shared<cpu::Arenas>();
  device.make_transport = [=, bytes = device.terms.segment_bytes]() -> std::unique_ptr<Transport> {
    if (threads) return std::make_unique<cpu::LocalTransport>(threads, bytes);
    return std::make_unique<cpu::ShmTransport>(bytes, arenas);
  };
  device.make_executor = [=, geometry = device.terms.geometry](const Segments& segments) {
    return std::make_unique<cpu::ThreadedExecutor>(segments, geometry, rank, ranks, timeout, arenas,
                                                   kChannels, test::team(kChannels));
  };
  return device;
}

// The outcome of a call.
enum class Ending {
  nothing,
  ok,
  peer_lost,
  mismatch,
  timed_out,
  aborted,
  rendezvous,
  transport,
  other
};
inline const char* name_of(Ending ending) {
  const char* const names[] = {"nothing",      "ok",           "PeerLostError",   "MismatchError",
                               "TimeoutError", "AbortedError", "RendezvousError", "TransportError",
                               "another error"};
  return names[int(ending)];
}

struct Outcome {
  Ending ending = Ending::nothing;
  int64_t at_ns = 0;
  int rank = -1;     // named by the error
  uint64_t seq = 0;  // named by the error
  char text[2500] = {};
};

// The outcome that another thread noted. It is no exception, because ThreadSanitizer does not see
// libstdc++'s reference counts of exceptions.
struct Noted {
  const Outcome outcome;
};

inline void note(Outcome& o, Ending ending, const Error& error) {
  o.rank = error.facts.rank;
  o.seq = error.facts.seq;
  write_text(o.text, error.what());
  o.ending = ending;
}

// Runs the function, and records the exception and its time. Returns true if there was none.
template <class F>
bool attempt(Outcome& o, F&& run) {
  try {
    run();
    o.ending = Ending::ok;
    return true;
  } catch (const Noted& noted) {
    o = noted.outcome;
  } catch (const PeerLostError& e) {
    o.at_ns = now_ns();
    note(o, Ending::peer_lost, e);
  } catch (const MismatchError& e) {
    o.at_ns = now_ns();
    note(o, Ending::mismatch, e);
  } catch (const TimeoutError& e) {
    o.at_ns = now_ns();
    note(o, Ending::timed_out, e);
  } catch (const AbortedError& e) {
    o.at_ns = now_ns();
    note(o, Ending::aborted, e);
  } catch (const RendezvousError& e) {
    o.at_ns = now_ns();
    note(o, Ending::rendezvous, e);
  } catch (const TransportError& e) {
    o.at_ns = now_ns();
    note(o, Ending::transport, e);
  } catch (const Error& e) {
    o.at_ns = now_ns();
    note(o, Ending::other, e);
  } catch (const std::exception& e) {
    o.at_ns = now_ns();
    note(o, Ending::other, Error(e.what()));
  }
  return false;
}

enum class How { quick, plain, async };

// Makes the call in each form.
inline void call(Communicator& communicator, const Device& device, Task task, How how) {
  if (how == How::async) {
    struct Ended {
      Outcome outcome;
      std::promise<void> said;
    };
    const auto ended = std::make_shared<Ended>();  // the callback may outlive this call
    communicator.run_async(device, task, [ended](std::exception_ptr error) {
      attempt(ended->outcome, [&] {
        if (error) std::rethrow_exception(error);
      });
      ended->said.set_value();
    });
    ended->said.get_future().get();
    if (ended->outcome.ending != Ending::ok) throw Noted{ended->outcome};
  } else if (how == How::plain || !communicator.run_now(device, task)) {
    communicator.run(device, task);
  }
}

// Returns the fault of a new ring; empty: none. All its ranks pass the same `seed`.
inline std::string new_ring_fails(Store& store, const Device& device, int rank, int ranks,
                                  Milliseconds timeout, uint64_t seed) {
  const std::shared_ptr<Store> borrowed(&store, [](Store*) {});
  Communicator communicator(borrowed, "again", rank, ranks, timeout);
  Tensors tensors(rank, ranks);
  Random random(seed);
  for (int i = 0; i < 10; ++i) {
    const Drawn drawn = draw(random, ranks, 64 << 10);
    const Task task = tensors.task(drawn, i);
    Outcome outcome;
    if (!attempt(outcome, [&] { communicator.run(device, task); }))
      return std::string("a new communicator fails: ") + outcome.text;
    if (std::string wrong = tensors.wrong(drawn, task, i); !wrong.empty()) return wrong;
  }
  return "";
}

// Returns the resources of this process before it has a ring. The arena stays for the life of the
// process, and so does a thread of ThreadSanitizer, which begins with the first thread.
inline Owned owned_at_first() {
  cpu::Arena::mine();
  std::thread([] {}).join();
  for (Owned last = owned();;) {
    ::usleep(1000);
    const Owned now = owned();
    if (now == last) return now;
    last = now;
  }
}

// Returns the additional resources of this process since `before`; empty: none.
inline std::string not_given_back(const Owned& before) {
  const Owned after = owned_once_settled(before);
  return after == before ? "" : "it has " + text_of(after) + "; before: " + text_of(before);
}

}  // namespace ringkern::faults
