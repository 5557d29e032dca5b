"""Flink and Spark clusters on loopback, made of the jars that `make engines` fetches, and Beam's workers for them."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
JARS = Path(os.environ.get("TPUGRAPHS_ENGINES", ROOT / ".engines"))
HOST = "127.0.0.1"
REGISTERED = {"flink": "Successful registration at resource manager", "spark": "Successfully registered with master"}
# Java's modules are closed since version 16; these are what Flink, Spark and Beam open.
_OPENED = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
_FLINK = "org.apache.flink.runtime"
# A TaskManager that is started without Flink's shell scripts is told every part of its memory.
_TASK_MANAGER = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
    "taskmanager.memory.task.heap.size": "256m",
    "taskmanager.memory.task.off-heap.size": "64m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.managed.size": "128m",
}


def wait_until(condition: Callable[[], bool], seconds: float, what: str = "") -> None:
    """Returns when the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: waited {seconds} s"
        time.sleep(0.02)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def jars_of(engine: str) -> Path:
    """The folder of an engine's jars; the test is skipped without Java or them."""
    if shutil.which("java") is None:
        pytest.skip("found no java; install a Java 17 runtime")
    folder = JARS / engine / "jars"
    if not list(folder.glob("beam-runners-*.jar")):
        pytest.skip(f"{folder}: found no jars of {engine}; run `make engines`, which needs Maven")
    return folder


@dataclass
class Processes:
    """The processes of a cluster, each with a log in `folder`; they end with the context."""

    folder: Path
    started: dict[str, subprocess.Popen] = field(default_factory=dict)
    commands: dict[str, tuple[Sequence[str], dict[str, str]]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen:
        """Starts a process in a session of its own."""
        self.commands[name] = command, environment
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,  # not that of the client: paths must not depend on it
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )
        return self.started[name]

    def java(self, name: str, jars: Sequence[Path], main: str, *arguments: str, **environment: str) -> None:
        """Starts a Java program."""
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        path = ":".join(map(str, jars))
        command = [
            "java",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-Xmx512m",
            "-XX:TieredStopAtLevel=1",
            *opened,
            "-cp",
            path,
            main,
            *arguments,
        ]
        self.start(name, command, **environment)

    def log(self, name: str) -> str:
        """What a process has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, text: str, seconds: float = 60) -> None:
        """Returns when a process has written the text."""

        def is_there() -> bool:
            assert self.started[name].poll() is None, f"{name} ended:\n{self.log(name)[-2000:]}"
            return text in self.log(name)

        wait_until(is_there, seconds, f"{name}: no {text!r} in {self.folder}")

    def stop(self) -> None:
        """Kills the processes and what they started."""
        for process in reversed(self.started.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                for each in [*parent.children(recursive=True), parent]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
            process.wait()


@dataclass
class Cluster:
    """A running engine: the options of a job for it, and what of it a test can kill."""

    engine: str
    processes: Processes
    options: tuple[str, ...]
    nodes: tuple[str, ...] = ()  # the names of the processes that run tasks

    def workers(self) -> list[psutil.Process]:
        """Beam's Python worker processes."""
        found = []
        for name in self.nodes:
            for each in psutil.Process(self.processes.started[name].pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any("tpugraphs-beam-worker" in part for part in each.cmdline()):
                        found.append(each)
        return found

    def kill_node(self) -> None:
        """Kills the last process that runs tasks, and the Java processes that it started."""
        parent = psutil.Process(self.processes.started[self.nodes[-1]].pid)
        for each in [parent, *parent.children(recursive=True)]:
            if "java" in each.name():
                each.kill()
        self.processes.started[self.nodes[-1]].wait()

    def start_node(self) -> None:
        """Starts the killed process again, for the next test."""
        name = self.nodes[-1]
        command, environment = self.processes.commands[name]
        self.processes.start(name, command, **environment)
        self.processes.wait_for(name, REGISTERED[self.engine])


@contextlib.contextmanager
def flink_cluster(folder: Path) -> Iterator[Cluster]:
    """A Flink JobManager, two TaskManagers with two slots each, and Beam's job server."""
    jars = sorted(jars_of("flink").glob("*.jar"))
    # Beam's own jars are not installed on the cluster: the job server sends them with each job.
    flink = [each for each in jars if not each.name.startswith("beam-")]
    rpc, rest = free_port(), free_port()
    settings = {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": str(rpc),
        "rest.address": HOST,
        "rest.port": str(rest),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "3",
        "restart-strategy.fixed-delay.delay": "1s",
        "cluster.evenly-spread-out-slots": "true",
        "heartbeat.interval": "1000",
        "heartbeat.timeout": "10000",
        "io.tmp.dirs": str(folder),
    }
    config = folder / "flink"
    config.mkdir()
    (config / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    processes = Processes(folder)
    nodes = ("taskmanager-1", "taskmanager-2")
    try:
        entry = f"{_FLINK}.entrypoint.StandaloneSessionClusterEntrypoint"
        processes.java("jobmanager", flink, entry, "--configDir", str(config))
        own = [part for name, value in _TASK_MANAGER.items() for part in ("-D", f"{name}={value}")]
        for name in nodes:
            runner = f"{_FLINK}.taskexecutor.TaskManagerRunner"
            processes.java(name, flink, runner, "--configDir", str(config), *own)
        job = _start_job_server(processes, jars, "flink", f"--flink-master={HOST}:{rest}")
        for name in nodes:
            processes.wait_for(name, REGISTERED["flink"])
        yield Cluster("flink", processes, (*job, "--parallelism=2", *_worker_options()), nodes)
    finally:
        processes.stop()


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """A Spark master, two workers of one core each, and Beam's job server."""
    home = jars_of("spark").parent
    jars = sorted((home / "jars").glob("*.jar"))
    port = free_port()
    url = f"spark://{HOST}:{port}"
    processes = Processes(folder)
    nodes = ("worker-1", "worker-2")
    deploy = "org.apache.spark.deploy"
    local = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_LOCAL_DIRS": str(folder)}
    local["SPARK_SCALA_VERSION"] = "2.12"  # which Spark's shell scripts set
    try:
        own = ("--host", HOST, "--port", str(port), "--webui-port", "0")
        processes.java("master", jars, f"{deploy}.master.Master", *own, **local)
        processes.wait_for("master", "I have been elected leader")
        for name in nodes:
            own = ("--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", "0", "-d", str(folder / name))
            processes.java(name, jars, f"{deploy}.worker.Worker", *own, url, **local)
        job = _start_job_server(processes, jars, "spark", f"--spark-master-url={url}", **local)
        for name in nodes:
            processes.wait_for(name, REGISTERED["spark"])
        yield Cluster("spark", processes, (*job, *_worker_options()), nodes)
    finally:
        processes.stop()


@contextlib.contextmanager
def embedded(folder: Path, engine: str) -> Iterator[Cluster]:
    """An engine that runs in the process of its job server; Beam's workers are threads of the client."""
    jars = sorted(jars_of(engine).glob("*.jar"))
    master = {"flink": "--flink-master=[local]", "spark": "--spark-master-url=local[2]"}[engine]
    processes = Processes(folder)
    try:
        job = _start_job_server(processes, jars, engine, master, SPARK_LOCAL_IP=HOST)
        yield Cluster(engine, processes, (*job, "--environment_type=LOOPBACK"))
    finally:
        processes.stop()


def _worker_options() -> tuple[str, ...]:
    """The options by which each engine process starts Beam's Python workers."""
    command = Path(sys.executable).with_name("tpugraphs-beam-worker")
    return "--environment_type=PROCESS", f"--environment_config={json.dumps({'command': str(command)})}"


def _start_job_server(
    processes: Processes, jars: Sequence[Path], engine: str, master: str, **environment: str
) -> tuple[str, ...]:
    """Starts Beam's job server for an engine; the options that name it."""
    port = free_port()
    main = f"org.apache.beam.runners.{engine}.{engine.capitalize()}JobServerDriver"
    own = (f"--job-host={HOST}", f"--job-port={port}", "--artifact-port=0", "--expansion-port=0", master)
    artifacts = f"--artifacts-dir={processes.folder / 'artifacts'}"
    processes.java("job-server", jars, main, *own, artifacts, **environment)
    processes.wait_for("job-server", "JobService started")
    return "--runner=PortableRunner", f"--job_endpoint={HOST}:{port}"
