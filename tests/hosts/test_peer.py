"""The records in which ranks write where they run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkern.hosts.peer import MAX_BYTES, VERSION, Peer, this_peer

PEER = Peer(1, "host", "boot", 4026531836, 77, (0, 2), 4026531840, "name")

words = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
numbers = st.integers(0, (1 << 63) - 1)
cores = st.lists(st.integers(0, 4095), max_size=5).map(tuple)
peers = st.builds(Peer, st.integers(0, 9999), words, words, numbers, numbers, cores, numbers, words)


@given(peers)
def test_a_peer_survives_its_json(peer: Peer) -> None:
    assert Peer.from_json(peer.to_json(), peer.rank) == peer
    assert Peer.from_json(peer.to_json().encode(), peer.rank) == peer


def changed(**values: Any) -> str:
    return json.dumps({**json.loads(PEER.to_json()), **values})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        ("[" * 60_000, "is no JSON"),
        ("[]", f"is not of version {VERSION}: all ranks need the same ringkern"),
        (changed(version=1), f"is not of version {VERSION}"),
        (changed(more=1), "has ['more']; accepted: rank, host, "),
        (json.dumps({"version": VERSION, "rank": 1}), "host is missing; accepted: a text"),
        (changed(rank=2), "is of rank 2: two ranks use the same number"),
        (changed(rank=True), "rank is True; accepted: a whole number"),
        (changed(pid=-1), "pid is -1; accepted: a whole number, 0 to "),
        (changed(pid=1 << 63), "pid is 9223372036854775808; accepted: a whole number"),
        (changed(host="x" * 257), "; accepted: a text, 0 to 256 characters"),
        (changed(host="a\nb"), "host is 'a\\nb'; accepted: a text"),
        (changed(named=None), "named is None; accepted: a text"),
        (changed(cores=3), "cores is 3; accepted: a list"),
        (changed(threads=0), "threads is 0; accepted: a whole number, 1 to 256"),
        (changed(shares=1), "shares is 1; accepted: "),
        (changed(cores=[0, -1]), "cores[1] is -1; accepted: a whole number"),
        (changed(host="x" * MAX_BYTES), f"at most {MAX_BYTES} are accepted"),
    ],
)
def test_a_malformed_peer_is_refused_with_its_rank(text: str | bytes, expected: str) -> None:
    with pytest.raises(ValueError, match="the record of rank 1") as caught:
        Peer.from_json(text, 1)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.data())
def test_any_change_to_a_peer_gives_a_peer_or_a_value_error(data: st.DataObject) -> None:
    text = bytearray(PEER.to_json().encode())
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    try:
        assert Peer.from_json(bytes(text), 1).rank == 1
    except ValueError as error:
        assert "rank 1" in str(error)  # noqa: PT017


def test_this_process(tmp_path: Path) -> None:
    peer = this_peer(3)
    assert (peer.rank, peer.pid) == (3, os.getpid())
    assert peer.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert Peer.from_json(peer.to_json(), 3) == peer
    unknown = this_peer(0, proc_root=tmp_path)
    assert (unknown.boot_id, unknown.pid_namespace, unknown.network_namespace) == ("", 0, 0)
