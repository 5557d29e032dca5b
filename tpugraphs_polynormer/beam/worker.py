"""The command `tpugraphs-beam-worker`: a Beam worker that a Flink or Spark process starts on its own machine.

It follows the contract of Beam's worker containers without a container: the engine starts it with an id and the address
of a service that tells the rest, and the package is already installed. Each engine process starts and stops its own
workers. Beam's pool of external workers has not that: two engine processes on one machine give their workers the same
ids, and the one that finishes first stops the workers of the other.

    --environment_type=PROCESS --environment_config='{"command": "/venv/bin/tpugraphs-beam-worker"}'
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc, endpoints_pb2
from google.protobuf import json_format, text_format

from tpugraphs_polynormer.beam.lifeline import BEAM_WORKER
from tpugraphs_polynormer.process import end_with_process

_SECONDS = 60  # for the engine's answer


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a worker until the engine that started it stops it or is gone."""
    parser = argparse.ArgumentParser(prog="tpugraphs-beam-worker", description=__doc__.splitlines()[0])
    parser.add_argument("--id", required=True, help="the engine's name of this worker")
    parser.add_argument("--provision_endpoint", required=True, help="where the engine tells the rest")
    args = parser.parse_known_args(arguments)[0]  # engines add options that only containers need
    end_with_process(os.getppid())
    os.environ.update(describe_worker(args.id, args.provision_endpoint))
    sys.argv[1:] = []
    runpy.run_module(BEAM_WORKER, run_name="__main__", alter_sys=True)


def describe_worker(worker: str, address: str) -> dict[str, str]:
    """The variables of the environment by which Beam's worker module finds the engine."""
    with grpc.insecure_channel(address) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        answer = stub.GetProvisionInfo(request, timeout=_SECONDS, metadata=[("worker_id", worker)], wait_for_ready=True)
    info = answer.info
    found = {
        "WORKER_ID": worker,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        "CONTROL_API_SERVICE_DESCRIPTOR": _to_text(info.control_endpoint),
        "LOGGING_API_SERVICE_DESCRIPTOR": _to_text(info.logging_endpoint),
    }
    if info.HasField("status_endpoint"):
        found["STATUS_API_SERVICE_DESCRIPTOR"] = _to_text(info.status_endpoint)
    return found


def _to_text(endpoint: endpoints_pb2.ApiServiceDescriptor) -> str:
    return text_format.MessageToString(endpoint)


if __name__ == "__main__":
    main()
