"""The assignment of ranks to hosts: found over a store, by ranks that come in any order, late, or
never.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ringkern import _C
from ringkern.errors import PeerLostError, RendezvousError
from ringkern.hosts import Hosts, Search, hosts_of
from ringkern.hosts import search as finding
from ringkern.hosts.peer import Peer, this_peer
from tests import forked

LONG_S = 60.0
SHORT_S = 0.3


def find(*arguments: Any) -> Hosts:
    return Search(*arguments).wait()


def peer(
    rank: int, host: str = "a", boot: str = "", net: int = 7, named: str = "", cores: int = 64
) -> Peer:
    return Peer(
        rank,
        host,
        boot or f"boot of {host}",
        network_namespace=net,
        named=named,
        cores=tuple(range(cores)),
    )


def in_threads(ranks: list[int], function: Callable[[int], Any]) -> dict[int, Any]:
    """Returns the result or exception of each."""
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = function(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


# ---- the definition of a host -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peers", "names", "host_of"),
    [
        ([peer(0), peer(1)], ("a",), (0, 0)),
        ([peer(0), peer(1, "b"), peer(2), peer(3, "b")], ("a", "b"), (0, 1, 0, 1)),
        ([peer(0, "z"), peer(1, "a"), peer(2, "z")], ("z", "a"), (0, 1, 0)),
        # Containers of a machine: the sockets at which ranks meet do not cross network namespaces.
        ([peer(0), peer(1, net=8), peer(2, net=9)], ("a", "a#2", "a#3"), (0, 1, 2)),
        ([peer(0), peer(1, boot="another")], ("a", "a#2"), (0, 1)),
        # A name parts what is one machine, and is no other host's.
        ([peer(0, named="x"), peer(1, named="y"), peer(2, named="x")], ("x", "y"), (0, 1, 0)),
        ([peer(0, named="a"), peer(1)], ("a", "a#2"), (0, 1)),
        ([peer(0, named="a#2"), peer(1), peer(2, net=8)], ("a#2", "a", "a#3"), (0, 1, 2)),
        ([peer(0, named="x"), peer(1, "b", boot="boot of a", named="x")], ("x",), (0, 0)),
        ([peer(0, ""), peer(1, "", boot="b")], ("unknown", "unknown#2"), (0, 1)),
    ],
)
def test_hosts_differ_by_boot_network_or_name(
    peers: list[Peer], names: tuple[str, ...], host_of: tuple[int, ...]
) -> None:
    assert hosts_of(peers) == Hosts(names, host_of)


@pytest.mark.parametrize(
    ("peers", "crowded"),
    [
        ([peer(0, cores=2), peer(1, cores=2)], False),
        ([peer(0, cores=1), peer(1, cores=1)], True),
        ([peer(0, cores=1), peer(1, "b", cores=1)], False),
        # Hosts of one machine have its cores together.
        ([peer(0, cores=1), peer(1, net=8, cores=1)], True),
        ([peer(0, named="x", cores=3), peer(1, named="y", cores=2)], False),
        ([peer(0), peer(1, "b"), peer(2, "b", cores=0)], False),
        ([peer(0), peer(1, "b", cores=0)], True),  # not known
    ],
)
def test_hosts_know_if_ranks_share_cores(peers: list[Peer], crowded: bool) -> None:
    assert hosts_of(peers).crowded == crowded


def with_threads(rank: int, threads: int, shares: bool, **others: Any) -> Peer:
    return replace(peer(rank, **others), threads=threads, shares=shares)


@pytest.mark.parametrize(
    ("peers", "threads"),
    [
        ([with_threads(0, 1, True, cores=8), with_threads(1, 1, True, cores=8)], ()),
        # Each has 4 of 8 cores that both have, or as many as torch's threads.
        ([with_threads(0, 8, True, cores=8), with_threads(1, 8, True, cores=8)], (4,)),
        ([with_threads(0, 8, True, cores=8), with_threads(1, 2, True, cores=8)], (2,)),
        # A number that was asked for is not a share.
        ([with_threads(0, 8, False, cores=8), with_threads(1, 8, False, cores=8)], (8,)),
        ([with_threads(0, 8, False, cores=8), with_threads(1, 8, True, cores=8)], (4,)),
        ([with_threads(0, 8, True, cores=1), with_threads(1, 8, True, cores=1)], ()),
        # Hosts count by themselves, and those of one machine share its cores.
        ([with_threads(0, 8, True, cores=8), with_threads(1, 3, True, host="b")], (8, 3)),
        ([with_threads(0, 8, True, cores=8), with_threads(1, 1, True, net=8, cores=8)], (4, 1)),
    ],
)
def test_the_ranks_of_a_host_use_the_least_of_their_threads(
    peers: list[Peer], threads: tuple[int, ...]
) -> None:
    hosts = hosts_of(peers)
    assert hosts.threads == threads
    assert hosts.threads_of(1) == (threads[hosts.host_of[1]] if threads else 1)
    assert Hosts.from_json(hosts.to_json(), 2) == hosts


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (peer(2, "b", named="x"), "boot id boot of a of a, boot of b of b"),
        (peer(2, net=8, named="x"), "network namespace 7 of a, 8 of a"),
    ],
)
def test_one_name_for_ranks_that_cannot_share_memory(other: Peer, expected: str) -> None:
    with pytest.raises(ValueError, match="rank 1 and rank 2 have RINGKERN_HOST=x") as caught:
        hosts_of([peer(0), peer(1, named="x"), other])
    assert expected in str(caught.value)


def test_hosts() -> None:
    hosts = Hosts(("a", "b"), (0, 1, 1, 0, 1))
    assert hosts.count == 2
    assert (hosts.ranks_on(0), hosts.ranks_on(1)) == ((0, 3), (1, 2, 4))
    assert [hosts.name_of(rank) for rank in range(5)] == ["a", "b", "b", "a", "b"]
    for crowded in (False, True):
        hosts = dataclasses.replace(hosts, crowded=crowded)
        assert Hosts.from_json(hosts.to_json(), 5) == hosts


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        "{}",
        "[]",
        '[["a","b"],[0,1]]',
        '[["a","b"],[0,1],0]',
        '[["a"],[0,0,0],false]',
        '[["a"],[0,1],false]',
        '[["a","b"],[0,0],false]',
        '[["a","b"],[1,0],false]',
        '[["a","a"],[0,1],false]',
        '[["a","b"],[0,true],false]',
        '[["a","b"],[0,1.0],false]',
        '[["a",""],[0,1],false]',
        '[["a","\\n"],[0,1],false]',
        '[["a",5],[0,1],false]',
        '[["a","b"],5,false]',
        "[" * 50_000,
        json.dumps([["a", "b" * 300], [0, 1], False]),
    ],
)
def test_malformed_hosts_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="the text on the hosts of 2 ranks"):
        Hosts.from_json(text, 2)


@given(st.data())
def test_any_change_to_hosts_gives_hosts_or_a_value_error(data: st.DataObject) -> None:
    text = bytearray(Hosts(("a", "b"), (0, 1, 1)).to_json().encode())
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with contextlib.suppress(ValueError):
        found = Hosts.from_json(bytes(text), 3)
        assert len(found.host_of) == 3
        assert set(found.host_of) == set(range(found.count))


# ---- all ranks come -----------------------------------------------------------------------------


def test_all_ranks_find_the_same() -> None:
    store = dist.PrefixStore("a", dist.HashStore())
    on = ["a", "b", "b", "a", "c"]
    found = in_threads(list(range(5)), lambda r: find(store, "x", r, 5, LONG_S, peer(r, on[r])))
    assert found == dict.fromkeys(range(5), Hosts(("a", "b", "c"), (0, 1, 1, 0, 2)))


def test_ranks_that_come_one_after_the_other_in_one_thread() -> None:
    """Creating a search does not wait; the last one has the answer."""
    store = dist.HashStore()
    searches = [Search(store, "x", r, 8, LONG_S, peer(r, "ab"[r // 4])) for r in range(8)]
    expected = Hosts(("a", "b"), (0,) * 4 + (1,) * 4)
    assert [search.wait() for search in searches] == [expected] * 8


def test_a_name_can_be_used_again() -> None:
    store = dist.HashStore()
    for hosts in ("ab", "aa", "ba"):
        searches = [Search(store, "x", r, 2, LONG_S, peer(r, hosts[r])) for r in range(2)]
        assert searches[0].wait().names == tuple(dict.fromkeys(hosts))
        assert searches[1].wait() == searches[0].wait()


def test_names_and_sizes_do_not_meet() -> None:
    store = dist.HashStore()
    names = (("x", 0, 2), ("y", 1, 2), ("z", 0, 3), ("z", 1, 2))
    for search in [Search(store, *of, SHORT_S, peer(of[1])) for of in names]:
        with pytest.raises(RendezvousError, match="did not come"):
            search.wait()


def test_this_process() -> None:
    """The default name of a rank's host is this machine's."""
    store = dist.HashStore()
    found = in_threads([0, 1], lambda r: find(store, "x", r, 2, LONG_S))
    crowded = len(os.sched_getaffinity(0)) < 2
    assert found[0] == found[1] == Hosts((this_peer(0).host,), (0, 0), crowded)


# ---- in processes -------------------------------------------------------------------------------

PROGRAM = """
import sys
import torch.distributed as dist
from ringkern.hosts import Search
path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hosts = Search(dist.FileStore(path, size), "x", rank, size, 60).wait()
print(list(hosts.names), list(hosts.host_of))
"""


def program(folder: Path, rank: int, size: int, *before: str, **environ: str) -> Any:
    python = sys.executable if before else forked.python()
    command = [*before, python, "-c", PROGRAM, f"{folder}/store", str(rank), str(size)]
    return subprocess.Popen(
        command, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def outputs(processes: list[Any]) -> list[str]:
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=100)
            assert process.returncode == 0, err
            found.append(out.strip())
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def test_processes_with_names(tmp_path: Path) -> None:
    names = ("left", "right", "left")
    found = outputs([program(tmp_path, r, 3, RINGKERN_HOST=n) for r, n in enumerate(names)])
    assert found == ["['left', 'right'] [0, 1, 0]"] * 3


def test_processes_in_network_namespaces(tmp_path: Path) -> None:
    apart = ("unshare", "--net")
    tried = subprocess.run([*apart, "true"], capture_output=True, text=True, timeout=60)
    if tried.returncode != 0:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    host = this_peer(0).host
    found = outputs([program(tmp_path, 0, 2), program(tmp_path, 1, 2, *apart)])
    assert found == [f"['{host}', '{host}#2'] [0, 1]"] * 2


# ---- some ranks do not come ---------------------------------------------------------------------


def test_a_rank_that_does_not_come_is_named_on_all() -> None:
    store = dist.HashStore()
    found = in_threads([0, 2], lambda r: find(store, "x", r, 4, SHORT_S, peer(r)))
    late = in_threads([1], lambda r: find(store, "x", r, 4, LONG_S, peer(r)))
    texts = {str(error) for error in (found | late).values()}
    assert len(texts) == 1, "all ranks are told the same, the late one too"
    assert "no ring of 4 ranks within 0.3 s (timed out); did not come: rank 1 3" in texts.pop()
    for error in (found | late).values():
        assert type(error) is RendezvousError
        assert error.rank == 1
    # The last rank, too: it comes after the failure, and must not report that all are there.
    assert type(in_threads([3], lambda r: find(store, "x", r, 4, LONG_S, peer(r)))[3]) is (
        RendezvousError
    )
    # The next attempt is another one.
    again = in_threads(list(range(4)), lambda r: find(store, "x", r, 4, LONG_S, peer(r)))
    assert again == dict.fromkeys(range(4), Hosts(("a",), (0,) * 4))


def test_an_error_does_not_keep_its_search() -> None:
    """A search that has failed is freed with its error, and not only when Python looks for cycles:
    its store could keep memory of the dead.
    """
    store = dist.HashStore()
    search = Search(store, "x", 0, 2, SHORT_S)
    seen = weakref.ref(search)
    with pytest.raises(RendezvousError):
        search.wait()
    gc.disable()
    try:
        del search
        assert seen() is None
    finally:
        gc.enable()


def test_many_that_do_not_come_are_not_all_listed() -> None:
    with pytest.raises(RendezvousError, match=r"did not come: rank 1 2 .* 16 and 83 more\. "):
        find(dist.HashStore(), "x", 0, 100, SHORT_S, peer(0))


def test_a_long_wait_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "_FIRST_WARNING_S", 0.2)
    with pytest.raises(RendezvousError):
        find(dist.HashStore(), "my ring", 1, 2, 0.5, peer(1))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    text = record.getMessage()
    assert "'my ring': no ring of 2 ranks yet, after 0 s; did not come: rank 0." in text
    assert "It fails after 0.5 s" in text


def test_ranks_that_do_not_fit_together_are_told_the_same() -> None:
    store = dist.HashStore()
    peers = [peer(0, named="x"), peer(1, "b", named="x")]
    found = in_threads([0, 1], lambda r: find(store, "x", r, 2, LONG_S, peers[r]))
    assert {type(error) for error in found.values()} == {RendezvousError}
    assert str(found[0]) == str(found[1])
    assert "rank 0 and rank 1 have RINGKERN_HOST=x, and cannot share memory" in str(found[0])


def test_a_rank_of_another_version_is_named() -> None:
    store = dist.HashStore()
    first = Search(store, "x", 0, 2, LONG_S, peer(0))
    store.set("ringkern/hosts of x/2/0/0", '{"version": 1}')
    Search(store, "x", 1, 2, LONG_S, peer(1))
    with pytest.raises(RendezvousError, match="the record of rank 0 is not of version"):
        first.wait()


def test_a_rank_that_gives_up_too_late_finds_the_others() -> None:
    """The last rank comes between the last look of one that gives up and its vote."""

    class Late:
        def __init__(self, store: dist.Store) -> None:
            self.store, self.over = store, False

        def check(self, keys: list[str]) -> bool:
            return self.over and self.store.check(keys)

        def add(self, key: str, value: int) -> int:
            if value > 1:
                self.over = True
                Search(self.store, "x", 1, 2, LONG_S, peer(1, "b"))
            return self.store.add(key, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

    store = Late(dist.HashStore())
    assert find(store, "x", 0, 2, SHORT_S, peer(0)) == Hosts(("a", "b"), (0, 1))


class Dead(Exception):
    """A rank's end."""


class Mortal:
    """A store whose rank dies when it is to leave an answer."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store

    def set(self, key: str, value: str) -> None:
        if key.endswith("answer"):
            raise Dead
        self.store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_another_rank_answers_for_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_GRACE_S", 0.2)
    store = dist.HashStore()
    first = Search(store, "x", 0, 2, LONG_S, peer(0))
    with pytest.raises(Dead):
        Search(Mortal(store), "x", 1, 2, LONG_S, peer(1))
    assert first.wait() == Hosts(("a",), (0, 0))


def test_a_rank_that_dies_while_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_GRACE_S", 0.2)
    store = dist.HashStore()
    first = Search(store, "x", 0, 3, LONG_S, peer(0))
    with pytest.raises(Dead):
        find(Mortal(store), "x", 1, 3, SHORT_S, peer(1))
    with pytest.raises(RendezvousError, match="another rank gave up, and died"):
        first.wait()


# ---- a process that has ended -------------------------------------------------------------------

MADE = """
import sys
import torch.distributed as dist
from ringkern.hosts import Search
search = Search(dist.FileStore(sys.argv[1], 3), "x", 1, 3, 60)
print("made", flush=True)
sys.stdin.read()
"""


def test_a_rank_that_is_killed_while_another_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with subprocess.Popen(
        [sys.executable, "-c", MADE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "made\n"
        first = Search(dist.FileStore(path, 3), "x", 0, 3, LONG_S)
        victim.kill()
        with pytest.raises(PeerLostError) as caught:
            first.wait()
    assert caught.value.rank == 1
    text = f"rank 0 could not join the ring: rank 1 (pid {victim.pid}) died before its first call"
    assert text in str(caught.value)
    with pytest.raises(PeerLostError) as late:  # the same as for the others
        find(dist.FileStore(path, 3), "x", 2, 3, LONG_S)
    assert (str(late.value), late.value.rank) == (str(caught.value), 1)


class Killing:
    """A store that ends its process in place of an answer."""

    def __init__(self, store: dist.Store, works: int) -> None:
        self.store, self.works = store, works

    def __getattr__(self, name: str) -> Any:
        self.works -= 1
        if self.works < 0:
            os._exit(0)
        return getattr(self.store, name)


@pytest.mark.parametrize("works", range(5))
def test_a_rank_that_dies_while_it_comes_is_named(tmp_path: Path, works: int) -> None:
    """Covers a death before each of the five records of a rank."""
    path = str(tmp_path / "store")
    if (child := os.fork()) == 0:
        Search(Killing(dist.FileStore(path, 2), works), "x", 1, 2, LONG_S)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises((PeerLostError, RendezvousError)) as caught:
        find(dist.FileStore(path, 2), "x", 0, 2, SHORT_S)
    assert caught.value.rank == 1


def gone(process: tuple[int, int], left: str = "") -> tuple[int, str] | None:
    """Returns True if rank 1, of which this process is known, counts as gone."""
    return _C.find_gone(("", [(0, 0), process, (0, 0)], 0.0), lambda: left)


def test_a_reused_pid_counts_as_ended() -> None:
    pid, started = _C.this_process()
    assert pid == os.getpid()
    assert gone((pid, started)) is None
    assert gone((0, 0)) is None, "it cannot be seen from here"
    reused = gone((pid, started - 1))
    assert reused is not None
    assert reused[0] == 1
    assert f"rank 1 (pid {pid}) died before its first call" in reused[1]
    if (child := os.fork()) == 0:
        os._exit(3)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        zombie = gone((child, started))
        assert zombie is not None
        assert "died before its first call (exit code 3)" in zombie[1]
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize(("left", "rank"), [("2", 2), ("", None), ("x", None), ("-1", None)])
def test_a_rank_that_has_left(left: str, rank: int | None) -> None:
    found = gone(_C.this_process(), left)
    assert (found and found[0]) == rank
    if found is not None:
        assert found[1].startswith("rank 2 closed its communicator, or its program ended normally")
    assert gone(_C.this_process(), "3") is None


# ---- the store ----------------------------------------------------------------------------------


class Broken:
    """A store that fails from a moment on."""

    def __init__(self, works: int) -> None:
        self.store, self.works = dist.HashStore(), works

    def __getattr__(self, name: str) -> Any:
        self.works -= 1
        if self.works < 0:
            raise RuntimeError("connection reset by peer")
        return getattr(self.store, name)


@pytest.mark.parametrize("works", range(12))
def test_a_store_that_fails(works: int) -> None:
    with pytest.raises(RendezvousError, match=r"torch's store.* has failed: connection reset"):
        find(Broken(works), "x", 0, 2, SHORT_S, peer(0))


def test_a_rank_that_has_come_by_half_and_cannot_be_seen() -> None:
    broken = Broken(2)  # it has said where it is, and does not count
    with pytest.raises(RendezvousError, match="has failed"):
        Search(broken, "x", 1, 2, LONG_S, peer(1))
    with pytest.raises(RendezvousError, match="a rank ended while it came"):
        find(broken.store, "x", 0, 2, SHORT_S, peer(0))


@pytest.mark.parametrize(
    "answer", [b"", b"\x00\xff", b"[]", b'{"refused": 5, "absent": [1]}', b"[[]]"]
)
def test_an_answer_may_be_any_bytes(answer: bytes) -> None:
    store = dist.HashStore()
    search = Search(store, "x", 0, 2, LONG_S, peer(0))
    store.set("ringkern/hosts of x/2/0/answer", answer)
    with pytest.raises(RendezvousError, match="All ranks need the same ringkern"):
        search.wait()
    store.set("ringkern/hosts of x/2/0/answer", b"x" * (2 << 20))
    with pytest.raises(RendezvousError, match="have 2097152 bytes in the store"):
        search.wait()
    refusal = json.dumps({"refused": "a\x1b[31m\nb" + "c" * 5000, "absent": [1], "lost": False})
    store.set("ringkern/hosts of x/2/0/answer", refusal)
    with pytest.raises(RendezvousError) as caught:
        search.wait()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) == 2000


def test_a_tcp_store_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """It would print on each wait() that ends without the key."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RendezvousError):
        find(store, "x", 0, 2, SHORT_S, peer(0))
    assert capfd.readouterr().err == ""
