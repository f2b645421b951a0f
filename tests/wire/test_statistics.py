"""The names of memcached 1.6.45's statistics: each is there, or in the table of docs/memcached-protocol.md with the reason; and
what monitors require of them."""

import fnmatch
import re
import socket

import pytest

from tests import frames, servers
from tests.wire.test_key_lists import Text

# As 1.6.45 lists them (with `-m 64`, without further options), in its order. A newer oracle is asked itself.
GENERAL = """pid uptime time version libevent pointer_size rusage_user rusage_system max_connections curr_connections total_connections
    rejected_connections connection_structures response_obj_oom response_obj_count response_obj_bytes read_buf_count read_buf_bytes
    read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed
    delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits touch_misses
    store_too_large store_no_memory auth_cmds auth_errors bytes_read bytes_written limit_maxbytes accepting_conns listen_disabled_num
    time_in_listen_disabled_us threads conn_yields hash_power_level hash_bytes hash_is_expanding slab_reassign_rescues
    slab_reassign_chunk_rescues slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_deletes slab_reassign_busy_nomem
    slab_reassign_last_busy_status slab_reassign_running slabs_moved lru_crawler_running lru_crawler_starts lru_maintainer_juggles
    malloc_fails log_worker_dropped log_worker_written log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids
    round_robin_fallback bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched evicted_active evictions
    reclaimed crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims
    lru_bumps_dropped""".split()
ITEMS = """number number_hot number_warm number_cold age_hot age_warm age mem_requested evicted evicted_nonzero evicted_time outofmemory
    tailrepairs reclaimed expired_unfetched evicted_unfetched evicted_active crawler_reclaimed crawler_items_checked lrutail_reflocked
    moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot hits_to_warm hits_to_cold hits_to_temp""".split()
SLABS = """chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end get_hits cmd_set delete_hits incr_hits
    decr_hits cas_hits cas_badval touch_hits""".split()
SLABS_TOTALS = ["active_slabs", "total_malloced"]
SETTINGS = """maxbytes maxconns tcpport udpport inter verbosity oldest evictions domain_socket umask shutdown_command growth_factor chunk_size
    num_threads num_threads_per_udp stat_key_prefix detail_enabled reqs_per_event cas_enabled tcp_backlog binding_protocol
    auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast hashpower_init slab_reassign slab_automove slab_automove_ratio
    slab_automove_window slab_chunk_max lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time flush_enabled dump_enabled
    hash_algorithm lru_maintainer_thread lru_segmented hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temp_lru temporary_ttl
    idle_timeout watcher_logbuf_size worker_logbuf_size read_buf_mem_limit track_sizes inline_ascii_response ext_item_size ext_item_age
    ext_low_ttl ext_recache_rate ext_wbuf_size ext_compact_under ext_drop_under ext_max_sleep ext_max_frag slab_automove_freeratio
    ext_drop_unread ssl_enabled ssl_chain_cert ssl_key ssl_verify_mode ssl_keyformat ssl_ciphers ssl_ca_cert ssl_wbuf_size
    ssl_session_cache ssl_kernel_tls ssl_min_version proxy_enabled proxy_uring_enabled num_napi_ids memory_file client_flags_size""".split()
SIZES = ["sizes_status"]

STORES = b"set a 0 0 1\r\n5", b"set b 0 100 1000\r\n" + b"x" * 1000


def plain(group, names):
    """Names without the numbers of classes, each once."""
    pattern = {"items": r"items:\d+:", "slabs": r"\d+:"}.get(group)
    return list(dict.fromkeys(re.sub(f"^{pattern}", "", name) if pattern else name for name in names))


def listed(address):
    with Text(address) as one:
        for store in STORES:
            assert one.ask(store) == b"STORED"
        return {group: plain(group, one.stats(group.encode())) for group in ("", "items", "slabs", "settings")}


def omitted():
    """The table of the page: {group: [patterns]}."""
    page = (servers.ROOT / "docs" / "memcached-protocol.md").read_text()
    rows = re.findall(r"^\| `(stats[\w ]*)` \| (`[^|]*) \| [^|]+ \|$", page, re.M)
    table = {}
    for command, names in rows:
        table.setdefault(command.removeprefix("stats").strip(), []).extend(re.findall(r"`([^`]+)`", names))
    return table


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(workers=1) as server:
        yield server


def test_every_name_is_there_or_in_the_table(node):
    expected = {"": GENERAL, "items": ITEMS, "slabs": SLABS + SLABS_TOTALS, "settings": SETTINGS}
    if servers.memcached_version() >= (1, 6, 45):
        with servers.Memcached("-m", "64") as memcached:
            assert listed(memcached.address) == expected
    ours, table = listed(node.memcached), omitted()
    assert set(table) <= set(expected)
    for group, names in expected.items():
        lacking = [name for name in names if name not in ours[group]]
        patterns = table.get(group, [])
        print(f"stats {group}: {len(names)} names, {len(lacking)} omitted: {' '.join(lacking)}")
        print(f"stats {group}: of our own: {' '.join(name for name in ours[group] if name not in names)}")
        unexplained = [name for name in lacking if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
        assert unexplained == []
        # A row that explains nothing, or something that is there, is wrong.
        needless = [pattern for pattern in patterns if not any(fnmatch.fnmatch(name, pattern) for name in lacking)]
        assert needless == []
    assert ours["items"] == ITEMS and ours["slabs"] == SLABS + SLABS_TOTALS, "in memcached's order"


def test_classes_count_what_is_done_to_their_items(node):
    """What prometheus/memcached_exporter requires of each class: numbers by these names."""
    with Text(node.memcached) as one:
        one.ask(b"stats reset")
        for command in (
            b"set n 0 0 1\r\n5", b"incr n 1", b"decr n 1", b"touch n 0", b"cas n 0 0 1 7\r\nx", b"ms n 1 E9 C0\r\n5",
            b"set long 0 0 3000\r\n" + b"y" * 3000, b"delete long", b"delete none", b"incr none 1",
        ):
            one.ask(command)
        one.list(b"get n n none", b"END")
        one.list(b"gat 0 n", b"END")
        slabs, general = one.stats(b"slabs"), one.stats()
        classes = {int(name.split(":")[0]) for name in slabs if ":" in name}
        assert classes >= {1}
        for name in ("get_hits", "cmd_set", "delete_hits", "incr_hits", "decr_hits", "cas_hits", "cas_badval", "touch_hits"):
            counts = {number: int(slabs[f"{number}:{name}"]) for number in classes}
            assert sum(counts.values()) == int(general[name]), (name, counts)
        assert slabs["1:get_hits"] == "2" and slabs["1:touch_hits"] == "2" and slabs["1:cas_badval"] == "2", slabs
        gone = [number for number in classes if slabs[f"{number}:delete_hits"] == "1"]
        assert len(gone) == 1 and gone[0] > 1
        items = one.stats(b"items")
        assert items["items:1:hits_to_cold"] == "2" and items["items:1:number_cold"] == items["items:1:number"]
        assert all(value.isdigit() for value in items.values())


def test_many_retrievals_and_stores_are_counted_by_sample(node):
    with Text(node.memcached) as one:
        one.ask(b"set c 0 0 1\r\nx")
        before, total = one.stats(b"slabs"), one.stats()
        for _ in range(200):
            one.send(b"get c\r\n" * 50 + b"set c 0 0 1 noreply\r\nx\r\n" * 50 + b"mn\r\n")
            one.rest(b"MN")
        after, later = one.stats(b"slabs"), one.stats()
    for name, short in (("get_hits", "get_hits"), ("cmd_set", "cmd_set")):
        assert int(later[name]) - int(total[name]) == 10_000
        assert abs(int(after[f"1:{short}"]) - int(before[f"1:{short}"]) - 10_000) < 64


def test_evictions_and_reclaimed_items_are_counted_by_class():
    with servers.Dormouse(workers=1, buckets=("default,ephemeral,16MiB",)) as server, Text(server.memcached) as one:
        for start in range(0, 40_000, 500):
            one.send(b"".join(b"set key:%d 0 %d 1000 noreply\r\n%b\r\n" % (n, 1000 * (n % 2), b"x" * 1000) for n in range(start, start + 500)))
            one.ask(b"mn")
        items, general = one.stats(b"items"), one.stats()
        sums = {name: sum(int(value) for key, value in items.items() if key.endswith(f":{name}")) for name in ("evicted", "evicted_nonzero", "evicted_unfetched", "direct_reclaims")}
        assert sums["evicted"] == int(general["evictions"]) > 10_000
        assert sums["evicted_unfetched"] == int(general["evicted_unfetched"]) == sums["evicted"]
        assert 0.3 < sums["evicted_nonzero"] / sums["evicted"] < 0.7
        assert sums["direct_reclaims"] == int(general["direct_reclaims"])
        assert one.ask(b"stats reset") == b"RESET"
        assert all(value == "0" for name, value in one.stats(b"items").items() if name.endswith((":evicted", ":evicted_time", ":reclaimed")))


def test_prefixes_are_dumped_over_the_binary_protocol(node):
    with Text(node.memcached) as text, socket.create_connection(node.memcached, timeout=60) as one:
        def stat(key):
            one.sendall(frames.request(frames.STAT, key=key))
            data = b""
            # The list ends with an answer that has neither key nor value.
            while len(data) < 24 or data[-24:-20] != b"\x81\x10\0\0" and data[6:8] == b"\0\0":
                data += one.recv(1 << 16)
            return data

        assert stat(b"detail on")[6:8] == b"\0\0"
        for command in (b"set pre:a 0 0 1\r\nx", b"delete pre:a"):
            text.ask(command)
        dumped = stat(b"detail dump")
        lines = b"PREFIX pre get 0 hit 0 set 1 del 1\r\nEND\r\n"
        assert dumped[24:-24] == b"detailed" + lines
        assert b"\r\n".join([*text.list(b"stats detail dump", b"END"), b"END\r\n"]) == lines
        assert stat(b"detail off")[6:8] == b"\0\0" and stat(b"detail x")[6:8] == b"\0\1"
