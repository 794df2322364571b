// The assignment of ranks to hosts, and errors of a host's ring in the group's numbers.
#include "hosts/hosts.h"

#include "check.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

using Ranks = std::vector<int>;

TEST_CASE("hosts whose ranks stand in order are read from the list") {
  const Hosts hosts(3, {0, 0, 1, 1}, {"a", "b"});
  CHECK_EQ(hosts.rank(), 3);
  CHECK_EQ(hosts.ranks(), 4);
  CHECK_EQ(hosts.count(), 2);
  CHECK_EQ(hosts.host(), 1);
  CHECK_EQ(hosts.local(), 1);
  CHECK_EQ(hosts.host_of(1), 0);
  CHECK_EQ(hosts.rails(), 2);
  CHECK(hosts.regular());
  CHECK(hosts.ranks_on(0) == (Ranks{0, 1}));
  CHECK(hosts.ranks_on(1) == (Ranks{2, 3}));
  CHECK_EQ(hosts.name(1), std::string("b"));
  CHECK_EQ(hosts.text(1), std::string("host b (ranks 2, 3)"));
  CHECK_EQ(hosts.text_of_rank(3), std::string("rank 3 on host b"));
  CHECK_EQ(hosts.text_of_rank(4), std::string("rank 4"));  // as the store may send it
  CHECK_EQ(hosts.text_of_rank(-1), std::string("rank -1"));
}

TEST_CASE("hosts whose ranks are mixed are read from the list") {
  const Hosts mixed(3, {0, 1, 1, 0}, {"a", "b"});
  CHECK_EQ(mixed.local(), 1);
  CHECK_EQ(mixed.local_of(1), 0);
  CHECK_EQ(mixed.local_of(2), 1);
  CHECK_EQ(mixed.rails(), 2);
  CHECK(!mixed.regular());
  CHECK(mixed.ranks_on(0) == (Ranks{0, 3}));
  const Hosts uneven(4, {0, 0, 0, 1, 1}, {"a", "b"});
  CHECK_EQ(uneven.rails(), 2);
  CHECK_EQ(uneven.local(), 1);
  CHECK(!uneven.regular());
  const Hosts more_later(0, {0, 1, 1}, {"a", "b"});
  CHECK_EQ(more_later.rails(), 1);
  CHECK(!more_later.regular());
  const Hosts one_each(2, {0, 1, 2}, {"a", "b", "c"});
  CHECK_EQ(one_each.rails(), 1);
  CHECK_EQ(one_each.local(), 0);
  CHECK(one_each.regular());
  CHECK_EQ(one_each.text(2), std::string("host c (rank 2)"));
  const Hosts alone(0, {0}, {"a"});
  CHECK(alone.regular());
  CHECK_EQ(alone.count(), 1);
}

TEST_CASE("impossible lists of hosts are refused") {
  CHECK_THROWS(UsageError, "rank 2 is not among the 2 ranks", Hosts(2, {0, 0}, {"a"}));
  CHECK_THROWS(UsageError, "rank -1 is not among", Hosts(-1, {0, 0}, {"a"}));
  CHECK_THROWS(UsageError, "is not among the 0 ranks", Hosts(0, {}, {}));
  CHECK_THROWS(UsageError, "rank 0 is on host number 1, after 0", Hosts(0, {1, 0}, {"a", "b"}));
  CHECK_THROWS(UsageError, "rank 1 is on host number 2, after 1", Hosts(0, {0, 2}, {"a", "b"}));
  CHECK_THROWS(UsageError, "rank 1 is on host number -1", Hosts(0, {0, -1}, {"a"}));
  CHECK_THROWS(UsageError, "1 names are given for 2 hosts", Hosts(0, {0, 1}, {"a"}));
  CHECK_THROWS(UsageError, "host number 1 has an empty name", Hosts(0, {0, 1}, {"a", ""}));
}

// Names come from other ranks.
TEST_CASE("names of hosts are fit for a message") {
  const Hosts hosts(0, {0, 1}, {"a\x1b[31m\xff", std::string(1000, 'b')});
  CHECK_EQ(hosts.name(0), std::string("a?[31m?"));
  CHECK_EQ(hosts.name(1), std::string(64, 'b'));
}

TEST_CASE("long lists of ranks are shortened") {
  const auto from = [](int first, int n, int by) {
    Ranks ranks;
    for (int i = 0; i < n; ++i) ranks.push_back(first + i * by);
    return ranks_text(ranks);
  };
  CHECK_EQ(from(3, 1, 1), std::string("rank 3"));
  CHECK_EQ(from(2, 2, 1), std::string("ranks 2, 3"));
  CHECK_EQ(from(2, 3, 1), std::string("ranks 2, 3, 4"));
  CHECK_EQ(from(0, 4, 1), std::string("ranks 0 to 3"));
  CHECK_EQ(from(8, 8, 1), std::string("ranks 8 to 15"));
  CHECK_EQ(from(0, 4, 2), std::string("ranks 0, 2, 4, 6"));
  CHECK_EQ(from(0, 64, 2), std::string("ranks 0, 2, 4 and 61 more"));
  CHECK_EQ(ranks_text({}), std::string("no ranks"));
}

TEST_CASE("a fault has the hosts of its ranks") {
  const Hosts hosts(0, {0, 0, 1, 1}, {"a", "b"});
  const Fault f = hosts.at_home(fault_of(Event::abort, 1, 3));
  CHECK_EQ(f.mine.host.text(), std::string("a"));
  CHECK_EQ(f.theirs.host.text(), std::string("b"));
  CHECK(hosts.at_home(fault_of(Event::abort, -1, 4)).theirs.host.empty());
}

}  // namespace
