"""A stand-in for the child of a compiler session: answers at once, and aborts, hangs or refuses where it is told to.

    python fake_compiler.py LOG FAULT EVERY OWNER

LOG gets a line for each module, and LOG.pb is what every program of the zoo is lowered to, and what every
text is parsed to. FAULT is none, abort, hang
or refuse, and strikes modules whose checksum is divisible by EVERY, unless snapshots are asked for. Nothing of ours is
imported, so that it starts fast.
"""

import json
import os
import sys
import time
import zlib
from pathlib import Path

log, fault, every = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for line in sys.stdin:
    request = json.loads(line)
    if "lower" in request:
        Path(request["target"]).write_bytes(Path(f"{log}.pb").read_bytes())
        print("{}", flush=True)
        continue
    if "parse" in request:
        Path(request["target"]).write_bytes(Path(f"{log}.pb").read_bytes())
        print("{}", flush=True)
        continue
    module = Path(request["module"]).read_bytes()
    number = zlib.crc32(module)
    with log.open("a") as file:
        file.write(f"{number}\n")
    for snapshot in request.get("snapshots", ()):
        Path(snapshot).write_bytes(module)
    if "snapshots" not in request and number % every == 0:
        if fault == "abort":
            print("F0000 gather_emitter.cc:620] Check failed: all is well", file=sys.stderr, flush=True)
            os.abort()
        elif fault == "hang":
            time.sleep(60)
        elif fault == "refuse":
            print(json.dumps({"error": "does not fit: 50G of 16G hbm"}), flush=True)
            continue
    answer = {"cycles": 940 * (1 + number % 1000), "num_estimated": 7, "unestimated": {"gather": 2}, "seconds": 0.5}
    print(json.dumps(answer), flush=True)
