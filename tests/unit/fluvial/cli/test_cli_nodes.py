"""`up`, `down` and `status` with real nodes: started, killed, stopped, moved, and kept from starting."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from adbc_driver_flightsql import dbapi
from fluvial_command import FLUVIAL, Cli

from fluvial.cli.cluster import nodes
from fluvial.local.probe import Cluster, Nobody, ask, registry_answers
from fluvial.local.start import Running
from fluvial.local.state import NodeSpec, Platform
from fluvial.local.status import NodeStatus
from tests.free_ports import free_port


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not come true within 60 s"
        time.sleep(0.02)


def kill(pid: int | None) -> None:
    """SIGKILL a node and wait until it is gone or a zombie."""
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_up_returns_when_broker_and_registry_answer(cli: Cli) -> None:
    cli.up()
    answer = ask("127.0.0.1", cli.port)
    assert isinstance(answer, Cluster)
    assert answer.brokers == {0: ("127.0.0.1", cli.port)}
    assert registry_answers("127.0.0.1", cli.registry_port)
    status = cli.status()
    assert status["bootstrap_servers"] == f"127.0.0.1:{cli.port}"
    assert status["registry_url"] == f"http://127.0.0.1:{cli.registry_port}"
    [node] = status["nodes"]
    assert set(node) == {
        "id",
        "pid",
        "host",
        "port",
        "data_dir",
        "registry_url",
        "metrics_url",
        "offline_log_dirs",
        "free_bytes",
    }
    assert (node["metrics_url"], node["offline_log_dirs"]) == (None, [])
    assert (node["id"], node["host"], node["port"]) == (0, "127.0.0.1", cli.port)
    assert "fluvial.node" in psutil.Process(node["pid"]).cmdline()
    assert Path(node["data_dir"]).is_dir()
    assert f"process {node['pid']}" in cli.ok("status")


def test_status_shows_contracts_that_differ_from_the_registry(cli: Cli) -> None:
    folder = cli.cwd / "schemas" / "shop"
    folder.mkdir(parents=True)
    owner = 'producer = "shop"\ncontact = "shop@example.org"\nsubjects = ["orders-value"]\ntopics = ["orders"]\n'
    (folder / "owner.toml").write_text(owner)
    contract = folder / "orders.avsc"
    older, newer = (
        json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, *more]})
        for more in ([], [{"name": "amount", "type": "int", "default": 0}])
    )
    cli.up()
    contract.write_text(older)
    assert cli.status()["contracts"] == {"orders-value": "new"}
    cli.ok("schema", "register")
    assert "orders-value" not in cli.ok("status")
    contract.write_text(newer)
    cli.ok("schema", "register")
    contract.write_text(older)
    assert "contracts orders-value (outdated); `fluvial schema check` says more" in cli.ok("status")


def test_metrics_are_served_where_they_are_asked_for_and_shown(cli: Cli) -> None:
    port = free_port()
    (cli.cwd / "fluvial.toml").write_text(f"metrics_port = {port}\n")
    cli.up()
    url = f"http://127.0.0.1:{port}/metrics"
    assert f"metrics {url}" in cli.ok("status")
    assert cli.status()["nodes"][0]["metrics_url"] == url
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"offline_partitions" in answer.read()
    cli.ok("up", "--detach")
    assert f"metrics from {port} on; leave out" in cli.refused("up", "--detach", "--metrics-port", str(port + 1))


def test_a_failed_or_full_disk_is_shown(tmp_path: Path) -> None:
    node = NodeSpec(id=0, host="127.0.0.1", port=1, registry_port=None, data_dir="node-0")
    well = NodeStatus(node=node, pid=1, held_by=1, data_dir=tmp_path, free_bytes=1 << 30)
    assert list(nodes._details(well)) == []
    ill = replace(well, offline_log_dirs=("/logs",), free_bytes=5 << 20)
    offline, full = nodes._details(ill)
    assert "/logs failed" in offline
    assert "5 MiB free on the disk" in full


def test_a_platform_that_others_can_reach_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    platform = Platform.planned(brokers=2, port=7000, registry_port=8000)
    nodes._show_running(Running(platform=platform, started=()), tmp_path)
    assert "warning" not in capsys.readouterr().err
    opened = replace(platform, nodes=(platform.nodes[0], replace(platform.nodes[1], host="0.0.0.0")))
    nodes._show_running(Running(platform=opened, started=()), tmp_path)
    [warning] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert "whoever reaches 0.0.0.0 can read, write and administer everything" in warning


def test_up_again_leaves_alone_what_is_up_and_needs_no_ports(cli: Cli) -> None:
    cli.up()
    before = cli.pids()
    cli.ok("up", "--detach")
    assert cli.pids() == before


def test_down_stops_the_node_and_says_so_once(cli: Cli) -> None:
    cli.up()
    [pid] = cli.pids()
    done = cli.run("down")
    assert f"node 0 (process {pid}): stopped" in done.stderr
    assert cli.pids() == [None]
    assert ask("127.0.0.1", cli.port) == Nobody()
    again = cli.run("down")
    assert (again.returncode, again.stderr) == (0, "nothing was running in .fluvial\n")
    assert "stopped" in (cli.data_dir / "node-0" / "node.log").read_text()


def test_a_killed_node_is_down_and_comes_back_with_its_data(cli: Cli) -> None:
    cli.up()
    cli.ok("topic", "create", "kept")
    [pid] = cli.pids()
    kill(pid)
    assert cli.pids() == [None]
    cli.ok("up", "--detach")
    [after] = cli.pids()
    assert after not in (None, pid)
    assert "kept" in cli.ok("topic", "list", "--format", "names").splitlines()


def test_three_brokers_know_each_other_and_one_is_restarted(cli: Cli) -> None:
    cli.up("--brokers", "3")
    before = cli.pids()
    assert None not in before
    for number in range(3):
        answer = ask("127.0.0.1", cli.port + number)
        assert isinstance(answer, Cluster)
        assert sorted(answer.brokers) == [0, 1, 2]
    kill(before[1])
    assert cli.pids() == [before[0], None, before[2]]
    cli.ok("up", "--detach")
    after = cli.pids()
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] not in (None, before[1])
    assert "would lose the data" in cli.refused("up", "--detach", "--brokers", "2")


def test_a_stale_pid_file_or_a_reused_pid_is_not_a_node(cli: Cli) -> None:
    cli.up()
    cli.ok("down")
    with subprocess.Popen([sys.executable, "-c", "input()", "fluvial.node"], stdin=subprocess.PIPE) as bystander:
        (cli.data_dir / "node-0" / "node.pid").write_text(f"{bystander.pid}\n")
        assert cli.pids() == [None]
        assert "nothing was running" in cli.run("down").stderr
        cli.ok("up", "--detach")
        assert bystander.poll() is None
        assert cli.pids() != [bystander.pid]
        bystander.kill()


def test_a_zombie_is_down(cli: Cli) -> None:
    with cli.start("up", "--port", str(cli.port), "--registry-port", str(cli.registry_port)) as process:
        wait_until(lambda: isinstance(ask("127.0.0.1", cli.port), Cluster) and cli.pids() != [None])
        [pid] = cli.pids()
        assert pid is not None
        # Its parent cannot reap it while it is stopped.
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        assert cli.pids() == [None]
        cli.ok("up", "--detach")
        assert cli.pids() != [pid]
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(timeout=60) == 1
    assert cli.pids() != [None]


def test_a_node_that_does_not_answer_is_not_up(cli: Cli) -> None:
    cli.up()
    [pid] = cli.pids()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert cli.pids() == [None]
    line = cli.refused("up", "--detach", "--timeout", "1")
    assert f"process {pid} works in" in line
    assert "fluvial down" in line
    stopped = cli.run("down", "--timeout", "0.5")
    assert f"node 0 (process {pid}): killed" in stopped.stderr
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_stopped_node_keeps_no_other_from_being_started(cli: Cli) -> None:
    cli.up("--brokers", "3")
    before = cli.pids()
    kill(before[1])
    stopped = before[2]
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    try:
        done = cli.run("up", "--detach", "--timeout", "60")
        assert done.returncode == 1, done.stderr
        *said, complaint = done.stderr.splitlines()
        assert complaint.startswith(f"error: node 2: process {stopped} works in ")
        assert f"`kill -CONT {stopped}`" in complaint
        assert "`fluvial down --node 2`" in complaint
        assert [line for line in said if line.startswith("node 1 started: ")]
        assert not [line for line in said if line.startswith("node 2")]
        after = cli.pids()
        assert (after[0], after[2]) == (before[0], None)
        assert after[1] not in (None, before[1])
        assert "Traceback" not in done.stderr
    finally:
        os.kill(stopped, signal.SIGCONT)
    cli.ok("up", "--detach")
    assert cli.pids() == [before[0], after[1], stopped]


def test_a_node_that_hangs_is_told_once_the_others_are_started(cli: Cli) -> None:
    cli.up("--brokers", "3")
    before = cli.pids()
    for pid in before[1:]:
        kill(pid)
    # It runs, works in the node's folder and will never open its port.
    hold = (
        "import pathlib, sys, time; from fluvial.local.lock import FolderLock; "
        "print(FolderLock(pathlib.Path(sys.argv[1])).acquire(5), flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", hold, str(cli.data_dir / "node-2" / "node.pid")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as hung:
        assert hung.stdout is not None
        assert hung.stdout.readline() == b"True\n"
        done = cli.run("up", "--detach", "--timeout", "20")
        hung.kill()
    assert done.returncode == 1
    assert f"error: node 2: process {hung.pid} works in " in done.stderr
    assert "kill -CONT" not in done.stderr
    after = cli.pids()
    assert after[1] not in (None, before[1])
    cli.ok("up", "--detach")
    assert None not in cli.pids()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_in_the_foreground_stops_its_nodes(cli: Cli, number: signal.Signals) -> None:
    with cli.start("up", "--port", str(cli.port), "--registry-port", str(cli.registry_port)) as process:
        wait_until(lambda: registry_answers("127.0.0.1", cli.registry_port))
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert b"Traceback" not in output
    assert cli.pids() == [None]
    assert ask("127.0.0.1", cli.port) == Nobody()


def test_up_in_the_foreground_ends_when_its_last_node_does(cli: Cli) -> None:
    with cli.start("up", "--port", str(cli.port), "--registry-port", str(cli.registry_port)) as process:
        wait_until(lambda: (cli.data_dir / "platform.json").exists() and cli.pids() != [None])
        [pid] = cli.pids()
        kill(pid)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"node 0 has ended (-9)" in output


@pytest.mark.parametrize(("flag", "at"), [("--port", "port"), ("--registry-port", "registry_port")])
def test_a_busy_port_is_named_and_nothing_is_started(cli: Cli, flag: str, at: str) -> None:
    port = getattr(cli, at)
    with socket.create_server(("127.0.0.1", port)):
        line = cli.refused(*cli.up_words())
        assert f"port {port} on 127.0.0.1 is taken by another program" in line
        assert flag in line
    assert not (cli.data_dir / "platform.json").exists()
    cli.up()


def test_a_port_that_got_busy_can_be_left_for_another(cli: Cli) -> None:
    cli.up()
    cli.ok("topic", "create", "kept")
    cli.ok("down")
    with socket.create_server(("127.0.0.1", cli.port)):
        assert f"port {cli.port}" in cli.refused("up", "--detach")
        cli.ok("up", "--detach", "--port", str(cli.port + 1))
        assert cli.status()["bootstrap_servers"] == f"127.0.0.1:{cli.port + 1}"
        assert cli.ok("topic", "list", "--format", "names") == "kept\n"
        assert "is running on port" in cli.refused("up", "--detach", "--port", str(cli.port + 2))


def test_two_platforms_do_not_take_each_other_for_their_own(cli: Cli, tmp_path: Path) -> None:
    cli.up()
    line = cli.refused(
        "up", "--detach", "--data-dir", "other", "--port", str(cli.port), "--registry-port", str(cli.registry_port)
    )
    assert f"port {cli.port} on 127.0.0.1 is taken by another Kafka cluster" in line
    assert not (tmp_path / "other" / "platform.json").exists()


def test_a_node_that_cannot_start_says_why_and_leaves_nothing_running(cli: Cli) -> None:
    cli.up()
    cli.ok("down")
    properties = cli.data_dir / "node-0" / "meta.properties"
    properties.write_text(properties.read_text().replace("node.id=0", "node.id=7"))
    line = cli.refused("up", "--detach")
    assert "node 0: " in line
    assert "it belongs to node 7" in line
    assert cli.pids() == [None]


def test_a_file_in_the_place_of_the_nodes_folder_is_named(cli: Cli) -> None:
    cli.data_dir.mkdir()
    (cli.data_dir / "node-0").write_text("")
    line = cli.refused(*cli.up_words())
    assert "cannot write the data directory .fluvial" in line
    assert "node-0" in line


def test_a_full_disk_is_told(cli: Cli) -> None:
    def no_space() -> None:
        # A limit on the size of files stands in for the full disk: each write beyond it fails.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [str(FLUVIAL), *cli.up_words()],
        cwd=cli.cwd,
        env=cli.environment,
        capture_output=True,
        preexec_fn=no_space,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: cannot write the data directory .fluvial: ")
    assert len(done.stderr.decode().splitlines()) == 1
    assert not (cli.data_dir / "platform.json").exists()


def test_an_impatient_up_stops_what_it_started(cli: Cli) -> None:
    line = cli.refused(*cli.up_words(), "--timeout", "0")
    assert "node 0: is not ready yet and was stopped" in line
    assert cli.pids() == [None]
    assert ask("127.0.0.1", cli.port) == Nobody()


def served(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/tables", timeout=5) as answer:
            return bool(json.load(answer) == {"tables": []})
    except OSError:
        return False


def asked_by_flight(port: int) -> list[tuple[Any, ...]]:
    with dbapi.connect(f"grpc://127.0.0.1:{port}", autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("select 1")
        return list(cursor.fetchall())


def test_a_server_comes_and_goes_with_the_nodes(cli: Cli) -> None:
    port = free_port()
    cli.up("--serve", "--serve-port", str(port))
    assert served(port)
    server = cli.status()["server"]
    assert server["url"] == f"http://127.0.0.1:{port}/tables"
    assert f"process {server['pid']}  {server['url']}" in cli.ok("status")
    # Started once, and again when it has died.
    cli.ok("up", "--detach", "--serve", "--serve-port", str(port))
    assert cli.status()["server"] == server
    kill(server["pid"])
    assert cli.status()["server"] is None
    flight_port = free_port()
    with_flight = ("--serve", "--serve-port", str(port), "--flight-port", str(flight_port))
    assert f"Flight SQL at grpc://127.0.0.1:{flight_port}" in cli.run("up", "--detach", *with_flight).stderr
    again = cli.status()["server"]
    assert again["pid"] != server["pid"]
    assert (server["flight"], again["flight"]) == (None, f"grpc://127.0.0.1:{flight_port}")
    assert f"{again['url']}, Flight SQL at {again['flight']}" in cli.ok("status")
    assert asked_by_flight(flight_port) == [(1,)]
    assert re.search(r"^server \(process \d+\): stopped$", cli.run("down").stderr, re.MULTILINE)
    assert cli.status()["server"] is None
    assert not served(port)
    with pytest.raises(dbapi.Error):
        asked_by_flight(flight_port)
    # One that runs is left as it is, and what it lacks is said.
    cli.ok("up", "--detach", "--serve", "--serve-port", str(port))
    assert "it was started without --flight-port" in cli.run("up", "--detach", *with_flight).stderr
    assert cli.status()["server"]["flight"] is None
    assert "--flight-port is a port of --serve" in cli.run("up", "--detach", "--flight-port", "1").stderr


def test_a_server_that_cannot_start_says_why_and_the_nodes_go_on(cli: Cli) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = cli.run(*cli.up_words(), "--serve", "--serve-port", str(port))
    assert done.returncode == 1
    assert "error: the server ended at once: error: 127.0.0.1" in done.stderr
    assert "choose another --port" in done.stderr
    assert None not in cli.pids()


def test_up_in_the_foreground_stops_its_server_too(cli: Cli) -> None:
    port = free_port()
    words = ("--port", str(cli.port), "--registry-port", str(cli.registry_port), "--serve", "--serve-port", str(port))
    with cli.start("up", *words) as process:
        wait_until(lambda: served(port))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert not served(port)
    assert (cli.pids(), cli.status()["server"]) == ([None], None)


ON_TWO_CORES = (
    "import os, sys; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2]); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, and so one node")
def test_auto_is_a_node_for_each_core_with_one_copy_of_each_partition(cli: Cli) -> None:
    words = [sys.executable, "-c", ON_TWO_CORES, str(FLUVIAL), *cli.up_words(), "--brokers", "auto"]
    for _ in range(2):
        made = subprocess.run(words, cwd=cli.cwd, env=cli.environment, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        assert "warning: topics have one copy" in made.stderr
    assert [node["id"] for node in cli.status()["nodes"]] == [0, 1]
    assert "2 partitions" in cli.run("topic", "create", "wide").stderr
    found = json.loads(cli.ok("topic", "describe", "wide", "--json"))
    assert sorted((each["leader"], each["replicas"]) for each in found["partitions"]) == [(0, [0]), (1, [1])]


def test_auto_takes_no_node_from_a_platform_and_leaves_its_copies(cli: Cli) -> None:
    cli.up("--brokers", "3")
    nodes_of_it = [node["id"] for node in cli.status()["nodes"]]
    words = [sys.executable, "-c", ON_TWO_CORES, str(FLUVIAL), *cli.up_words(), "--brokers", "auto"]
    done = subprocess.run(words, cwd=cli.cwd, env=cli.environment, capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr
    assert [node["id"] for node in cli.status()["nodes"]] == nodes_of_it
    cli.ok("topic", "create", "kept")
    (partition,) = json.loads(cli.ok("topic", "describe", "kept", "--json"))["partitions"]
    assert len(partition["replicas"]) == 3


@pytest.mark.parametrize("count", ["0", "-1", "many", "2.5", "²"])
def test_what_is_no_number_of_nodes_is_refused(cli: Cli, count: str) -> None:
    line = cli.refused("up", "--detach", f"--brokers={count}")
    assert f"--brokers {count}: a number from 1 on, or auto for one on each core" in line
