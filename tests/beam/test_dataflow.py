"""What of a Dataflow job can be tried without the cloud: options, the pipeline, and the package that is sent."""

import subprocess
import venv
from pathlib import Path

import apache_beam as beam
import numpy
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions, StandardOptions, WorkerOptions
from apache_beam.runners.portability.stager import Stager
from apache_beam.transforms.environments import DockerEnvironment

from tests.beam.clusters import ROOT
from tests.small_datasets import LAYOUT, TILE, write_small_tree
from tpugraphs_polynormer.beam.plan import plan_job
from tpugraphs_polynormer.beam.preprocess import Preprocess
from tpugraphs_polynormer.beam.runners import make_options
from tpugraphs_polynormer.datasets.shards import PreprocessOptions

pytestmark = pytest.mark.engines
CLOUD = (
    "--runner=DataflowRunner",
    "--project=p",
    "--region=r",
    "--temp_location=gs://b/t",
    "--staging_location=gs://b/s",
)
PACKAGED = f"--setup_file={ROOT / 'setup.py'}"
IMAGE = "--sdk_container_image=example/tpugraphs:1"


@pytest.mark.parametrize("how", [PACKAGED, IMAGE])
def test_the_options_are_understood(how):
    options = make_options([*CLOUD, how, "--num_workers=4", "--disk_size_gb=100"])
    assert options.view_as(StandardOptions).runner == "DataflowRunner"
    assert options.view_as(GoogleCloudOptions).temp_location == "gs://b/t"
    told = (options.view_as(SetupOptions).setup_file, options.view_as(WorkerOptions).sdk_container_image)
    assert told in ((str(ROOT / "setup.py"), None), (None, "example/tpugraphs:1"))


def test_the_pipeline_becomes_a_proto_whose_steps_run_in_the_image(tmp_path):
    job = plan_job(str(write_small_tree(tmp_path)), "gs://b/out", dict.fromkeys((LAYOUT, TILE), PreprocessOptions()))
    pipeline = beam.Pipeline(runner="FnApiRunner", options=make_options([*CLOUD, IMAGE]))
    _ = pipeline | Preprocess(job)
    image = DockerEnvironment.from_container_image("example/tpugraphs:1")
    proto = pipeline.to_runner_api(default_environment=image)
    (environment,) = proto.components.environments.values()
    assert b"example/tpugraphs:1" in environment.payload
    names = {each.unique_name for each in proto.components.transforms.values()}
    assert {"Preprocess/WriteShards", "Preprocess/Commit"} <= names
    again = beam.Pipeline.from_runner_api(proto, "FnApiRunner", make_options([]))
    assert {each.full_label for each in again.transforms_stack[0].parts[0].parts} <= names


def test_the_package_that_beam_sends_installs_in_an_empty_environment_and_imports(tmp_path):
    """Dependencies come from this environment through a .pth file; Dataflow installs them on the worker."""
    package = Stager._build_setup_package(str(ROOT / "setup.py"), str(tmp_path))
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    (packages,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(numpy.__file__).parents[1]) + "\n")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", package]
    code = (
        "import tpugraphs_polynormer.beam.preprocess as a, tpugraphs_polynormer.beam.score, "
        "tpugraphs_polynormer.beam.label; from tpugraphs_polynormer.config.loader import find_config; "
        "print(a.__file__, find_config('demo/tile_xla'))"
    )
    for command in (install, [python, "-c", code]):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
    assert all(each.startswith(str(packages)) for each in done.stdout.split())


def test_the_recipe_of_the_image_has_the_version_of_beam():
    recipe = (ROOT / "pipelines/engines/Dockerfile").read_text()
    minor = beam.__version__.rpartition(".")[0]
    assert f"beam_python3.11_sdk:{minor}." in recipe
    copied = [line.split()[1:-1] for line in recipe.splitlines() if line.startswith("COPY")]
    assert all((ROOT / each).exists() for line in copied for each in line)
