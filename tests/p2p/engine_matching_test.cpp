// The matching of receives and messages: tags in any order, and messages from any source.
#include <algorithm>

#include "p2p/engines.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// Each message is larger than the link; without a place to set them aside both ranks would
// deadlock.
void tags_in_any_order(Protocol protocol) {
  on_engines(2, [&](Rank& r) {
    const int other = 1 - r.rank;
    const uint64_t tags = 6;
    const auto size = [](uint64_t tag) { return size_t(900000 + tag); };
    for (uint64_t t = 0; t < tags; ++t)
      r.box.send(other, t, contents(r.rank, other, t, size(t)), protocol);
    for (uint64_t t = tags; t-- > 0;) {  // in reverse order: only the last is there in time
      const size_t m = r.box.receive(other, t, size(t));
      r.box.wait_for(m);
      CHECK(r.box.bytes(m) == contents(other, r.rank, t, size(t)));
    }
    r.box.check();
  });
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("a tag keeps its order") {
  on_engines(2, [](Rank& r) {
    const int count = 200;
    const auto size = [](int i) { return size_t(i * 37 % 5000); };
    if (r.rank == 0) {
      for (int i = 0; i < count; ++i)
        r.box.send(1, 3, contents(0, 1, uint64_t(i), size(i)), kAll[i % 3]);
      r.box.send(1, 4, {});
    } else {
      std::vector<size_t> received;
      for (int i = 0; i < count / 2; ++i) received.push_back(r.box.receive(0, 3, size(i)));
      // the others have all arrived then, and are set aside
      r.box.wait_for(r.box.receive(0, 4, 0));
      for (int i = count / 2; i < count; ++i) received.push_back(r.box.receive(0, 3, size(i)));
      r.box.check();
      for (int i = 0; i < count; ++i)
        CHECK(r.box.bytes(received[size_t(i)]) == contents(0, 1, uint64_t(i), size(i)));
    }
    r.box.check();
  });
}

// A receive that is posted while its message is being set aside.
TEST_CASE("a message half set aside finds its receiver") {
  on_engines(2, [](Rank& r) {
    const size_t n = 8 << 20;
    if (r.rank == 0) {
      r.box.send(1, 1, contents(0, 1, 1, n));
      r.box.send(1, 2, contents(0, 1, 2, 10));
    } else {
      const size_t small = r.box.receive(0, 2, 10), large = r.box.receive(0, 1, n);
      r.box.check();
      CHECK(r.box.bytes(large) == contents(0, 1, 1, n));
      CHECK(r.box.bytes(small) == contents(0, 1, 2, 10));
    }
    r.box.check();
  });
}

TEST_CASE("a message that is not needed stays in the link") {
  on_engines(3, [](Rank& r) {
    const size_t n = 4 << 20;
    if (r.rank == 0) {
      const size_t fits = r.box.send(1, 1, contents(0, 1, 1, 1000));
      r.box.wait_for(fits);  // no receive is needed for that
      const size_t large = r.box.send(1, 2, contents(0, 1, 2, n));
      r.store->set("sent", "");
      r.store->get("talked", kLong);
      CHECK(!r.box.done(large));
      r.store->set("seen", "");
    } else if (r.rank == 1) {
      r.store->get("sent", kLong);
      talk(r, 2, 9);
      r.store->set("talked", "");
      r.store->get("seen", kLong);
      const size_t small = r.box.receive(0, 1, 1000), large = r.box.receive(0, 2, n);
      r.box.check();
      CHECK(r.box.bytes(small) == contents(0, 1, 1, 1000));
      CHECK(r.box.bytes(large) == contents(0, 1, 2, n));
    } else {
      talk(r, 1, 9);
    }
    r.box.check();
  });
}

TEST_CASE("any source takes from all") {
  on_engines(4, [](Rank& r) {
    const int each = 60;
    if (r.rank > 0) {
      for (int i = 0; i < each; ++i) {
        r.box.send(0, 8, contents(r.rank, 0, 8, 10));  // first in the link, without a receive
        r.box.send(0, 3, contents(r.rank, 0, uint64_t(i), size_t(r.rank * 1000)), kAll[i % 3]);
      }
      r.box.check();
      return;
    }
    // Sizes differ, so each source is matched by its size: first the source, then the bytes.
    std::map<int, int> taken;
    for (int i = 0; i < 3 * each; ++i) {
      const size_t token = r.box.receive(kAnySource, 8, 10);
      r.box.wait_for(token);
      const int from = r.box.source(token);
      CHECK(from >= 1 && from <= 3);
      CHECK(r.box.bytes(token) == contents(from, 0, 8, 10));
      const size_t m = r.box.receive(from, 3, size_t(from * 1000));
      r.box.wait_for(m);
      CHECK(r.box.bytes(m) == contents(from, 0, uint64_t(taken[from]), size_t(from * 1000)));
      ++taken[from];
    }
    r.box.check();
    for (int from = 1; from <= 3; ++from) CHECK_EQ(taken[from], each);
  });
}

TEST_CASE("any source is fair") {
  on_engines(4, [](Rank& r) {
    if (r.rank > 0) {
      for (int i = 0; i < 6; ++i) r.box.send(0, 3, Bytes(1), Protocol::ll128);
      r.box.check();  // all of it lies in the link
      r.barrier("sent");
      return r.barrier("received");
    }
    r.barrier("sent");
    std::vector<int> sources;
    for (int i = 0; i < 18; ++i) {
      const size_t m = r.box.receive(kAnySource, 3, 1);
      r.box.wait_for(m);
      sources.push_back(r.box.source(m));
    }
    for (size_t i = 0; i < sources.size(); i += 3) {
      std::sort(sources.begin() + ptrdiff_t(i), sources.begin() + ptrdiff_t(i) + 3);
      for (int k = 0; k < 3; ++k) CHECK_EQ(sources[i + size_t(k)], k + 1);
    }
    r.barrier("received");
  });
}

// A message goes to the first posted receive that matches.
TEST_CASE("receives are served in their order") {
  on_engines(2, [](Rank& r) {
    if (r.rank == 0) {
      std::vector<size_t> m;
      for (const int from : {kAnySource, 1, kAnySource, kAnySource, 1})
        m.push_back(r.box.receive(from, 2, 100));
      r.box.send(1, 1, {});
      r.box.check();
      for (size_t i = 0; i < m.size(); ++i) {
        CHECK(r.box.bytes(m[i]) == contents(1, 0, i, 100));
        CHECK_EQ(r.box.source(m[i]), 1);
      }
    } else {
      r.box.wait_for(r.box.receive(0, 1, 0));
      for (uint64_t i = 0; i < 5; ++i) r.box.send(0, 2, contents(1, 0, i, 100));
      r.box.check();
    }
  });
}

TEST_CASE("tags are received in any order") {
  for (const Protocol p : kAll) tags_in_any_order(p);
}

}  // namespace
