// Which ranks are on which host, and what a host's ring says in the group's numbers.
#include "comm/hosts.h"

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
  CHECK_EQ(hosts.text_of_rank(4), std::string("rank 4"));  // as the store may say
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

TEST_CASE("numbers of ranks in a text become those of the group") {
  const Ranks ranks{4, 5, 11, 107};
  const auto is = [&](const std::string& local, const std::string& group) {
    CHECK_EQ(renumbered(local, ranks), group);
  };
  is("rank 2 (pid 2) died (killed by signal 1) during seq=2 sum float32[2], in which rank 0 had "
     "been for 2.0 s",
     "rank 11 (pid 2) died (killed by signal 1) during seq=2 sum float32[2], in which rank 4 had "
     "been for 2.0 s");
  is("Rank 0's memory, of rank 1, 2 s ago; rank 3",
     "Rank 4's memory, of rank 5, 2 s ago; rank 107");
  is("", "");
  is("rank", "rank");
  is("rank ", "rank ");
  is("rank 1", "rank 5");
  is("no ranks. 2 ranks. 1 rank. rank x rank ? frank 1 rank_1 my_rank 1",
     "no ranks. 2 ranks. 1 rank. rank x rank ? frank 1 rank_1 my_rank 1");
  // What is no rank of this ring stays.
  is("rank 4 rank 12345678901234567890 rank 99 and ranks 1, 4",
     "rank 4 rank 12345678901234567890 rank 99 and ranks 5, 4");
  is("did not come: rank 1 3; came but did not finish connecting: rank 2; rank 0 waited",
     "did not come: rank 5 107; came but did not finish connecting: rank 11; rank 4 waited");
  is("ranks 0, 2 and 3 differ, Ranks 1, 2, and 3, too; ranks 0, 1 and 61 more",
     "ranks 4, 11 and 107 differ, Ranks 5, 11, and 107, too; ranks 4, 5 and 61 more");
  // What each of them does, as a call that timed out says.
  is("waited 0.5 s. Per rank: 0 in seq=2 for 1.0 s; 1 has made no call; 3 done with seq=1 2.0 s "
     "ago. The rest; 1 is none",
     "waited 0.5 s. Per rank: 4 in seq=2 for 1.0 s; 5 has made no call; 107 done with seq=1 2.0 s "
     "ago. The rest; 1 is none");
  is("(broadcast float32[1] root=1)", "(broadcast float32[1] root=5)");
  is("(broadcast float32[1] root 1)", "(broadcast float32[1] root 1)");  // of all hosts
  is("ranks disagree on the root: rank 0 has 1 (seq=1 broadcast), rank 1 has 0 (seq=1 broadcast).",
     "ranks disagree on the root: rank 4 has 5 (seq=1 broadcast), rank 5 has 4 (seq=1 broadcast).");
  is("ranks disagree on numel: rank 0 has 1 (x), rank 1 has 0 (x)",
     "ranks disagree on numel: rank 4 has 1 (x), rank 5 has 0 (x)");
  // What is in the group's numbers already.
  const Hosts hosts(0, {0, 0, 1, 1}, {"a", "b"});
  is(hosts.text_of_rank(1) + " died, and so did " + hosts.text(1) + ". Here: rank 1 waited.",
     "rank 1 on host a died, and so did host b (ranks 2, 3). Here: rank 5 waited.");
  CHECK_EQ(renumbered("rank 1", {}), std::string("rank 1"));
}

TEST_CASE("failures name ranks by their numbers in the group") {
  Failure f{Cause::peer_lost, 0, Facts{1, 7, "rank 1"}, "rank 1 died"};
  const Failure g = renumbered(f, {4, 5});
  CHECK(g.cause == Cause::peer_lost);
  CHECK_EQ(g.reporter, 4);
  CHECK_EQ(g.about.rank, 5);
  CHECK_EQ(g.about.seq, uint64_t(7));
  CHECK_EQ(g.text, std::string("rank 5 died"));
  f.about.rank = -1;
  CHECK_EQ(renumbered(f, {4, 5}).about.rank, -1);
  f.given = true;  // the text of whoever gave it to the ring
  CHECK_EQ(renumbered(f, {4, 5}).text, std::string("rank 1 died"));
  CHECK_EQ(renumbered(f, {4, 5}).reporter, 0);
}

}  // namespace
