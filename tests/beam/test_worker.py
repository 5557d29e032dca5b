"""The worker learns from the engine where to connect."""

from concurrent.futures import ThreadPoolExecutor

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc, endpoints_pb2
from google.protobuf import struct_pb2, text_format

from tpugraphs_polynormer.beam.worker import describe_worker


class Engine(beam_provision_api_pb2_grpc.ProvisionServiceServicer):
    """The service of an engine that knows the worker 3-1."""

    def GetProvisionInfo(self, request, context):
        assert ("worker_id", "3-1") in context.invocation_metadata()
        options = struct_pb2.Struct()
        options.update({"beam:option:parallelism:v1": "2"})
        info = beam_provision_api_pb2.ProvisionInfo(
            pipeline_options=options,
            control_endpoint=endpoints_pb2.ApiServiceDescriptor(url="localhost:1"),
            logging_endpoint=endpoints_pb2.ApiServiceDescriptor(url="localhost:2"),
            runner_capabilities=["a", "b"],
        )
        return beam_provision_api_pb2.GetProvisionInfoResponse(info=info)


def test_the_engine_is_asked_by_the_workers_name():
    server = grpc.server(ThreadPoolExecutor(1))
    beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(Engine(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        found = describe_worker("3-1", f"127.0.0.1:{port}")
    finally:
        server.stop(0)
    urls = [
        text_format.Parse(found[f"{each}_API_SERVICE_DESCRIPTOR"], endpoints_pb2.ApiServiceDescriptor()).url
        for each in ("CONTROL", "LOGGING")
    ]
    assert urls == ["localhost:1", "localhost:2"]
    assert found["WORKER_ID"] == "3-1" and found["RUNNER_CAPABILITIES"] == "a b"
    assert '"beam:option:parallelism:v1": "2"' in found["PIPELINE_OPTIONS"]
    assert "STATUS_API_SERVICE_DESCRIPTOR" not in found
