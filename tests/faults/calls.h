// How a rank makes calls, and what becomes of them.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "cpu/engine.h"
#include "cpu/shm.h"
#include "drawn.h"
#include "shared.h"

namespace ringkern::faults {

// As csrc/torch makes it for CPU tensors. `threads`: of ranks that are, on one mapping of what they
// share, which is what ThreadSanitizer needs; then no tensor is reduced where it is.
inline Device cpu_device(int rank, int ranks, Milliseconds timeout,
                         const std::shared_ptr<cpu::LocalMemory>& threads = nullptr) {
  Device device;
  device.name = device.terms.device = "cpu";
  device.terms.geometry = cpu::default_geometry();
  device.terms.segment_bytes = cpu::segment_bytes(device.terms.geometry);
  device.probe = cpu::probe_room(device.terms.geometry);
  const auto arenas = threads ? nullptr : std::make_shared<cpu::Arenas>();
  device.make_transport = [=, bytes = device.terms.segment_bytes]() -> std::unique_ptr<Transport> {
    if (threads) return std::make_unique<cpu::LocalTransport>(threads, bytes);
    return std::make_unique<cpu::ShmTransport>(bytes, arenas);
  };
  device.make_executor = [=, geometry = device.terms.geometry](const Segments& segments) {
    return std::make_unique<cpu::Engine>(segments, geometry, rank, ranks, timeout, arenas);
  };
  return device;
}

// What a call ended in.
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
  int rank = -1;     // as the error says
  uint64_t seq = 0;  // as the error says
  char text[2500] = {};
};

// What another thread has noted. An exception is not handed over: ThreadSanitizer does not see how
// libstdc++ counts who holds it.
struct Noted {
  const Outcome outcome;
};

inline void note(Outcome& o, Ending ending, const Error& error) {
  o.rank = error.facts.rank;
  o.seq = error.facts.seq;
  write_text(o.text, error.what());
  o.ending = ending;
}

// Runs it, and notes when it raised what. True if it did not.
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

// In each of the ways in which a rank may call.
inline void call(Communicator& communicator, const Device& device, const Task& task, How how) {
  if (how == How::async) {
    struct Ended {
      Outcome outcome;
      std::promise<void> said;
    };
    const auto ended = std::make_shared<Ended>();  // the callback is over after this call
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

// What keeps a new ring from working; empty: nothing. All its ranks ask with the same `seed`.
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

// What this process has before it has a ring. The arena stays for its life, and so does a thread of
// ThreadSanitizer's, which begins with the first that is made.
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

// What this process has besides what it had `before`; empty: nothing.
inline std::string not_given_back(const Owned& before) {
  const Owned after = owned_once_settled(before);
  return after == before ? "" : "it has " + text_of(after) + "; before: " + text_of(before);
}

}  // namespace ringkern::faults
