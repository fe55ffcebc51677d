"""`python -m examples.pipelines.batch`: see the package."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from uuid import uuid4

import dexray
from dex import AttributeMatch, Client
from examples.pipelines.batch.flow import Folders, Manifest, flow, is_waiting, progress, registry

HEADER = "station,day,degrees\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.pipelines.batch", description="Clean a folder of CSV.")
    parser.add_argument("--demo", action="store_true", help="with files made for it, one of them broken")
    parser.add_argument("--source", default="raw", help="folder of CSV files (default: raw)")
    parser.add_argument("--target", default="clean", help="folder for Parquet files (default: clean)")
    given = parser.parse_args(arguments)
    flow_id = f"batch-{uuid4()}"
    with tempfile.TemporaryDirectory(prefix="batch-") as temporary, dexray.connect(registry) as client:
        source, target = Path(given.source).absolute(), Path(given.target).absolute()
        if given.demo:
            source, target = Path(temporary) / "raw", Path(temporary) / "clean"
            make_files(source)
        client.start_flow(flow, flow_id, Folders(str(source), str(target)))
        if given.demo:
            _mend(client, flow_id, source)
        done = client.wait_for_flow(flow_id).single_output(Manifest)
        for message in reversed(client.list_stream_messages(flow_id, progress, page_size=50).messages):
            print(message.value)
        print(f"{done.files} files, {done.rows} rows ({done.dropped} dropped), {len(done.skipped)} skipped")


def make_files(folder: Path, count: int = 6) -> None:
    """Files like those of real life: doubled rows, missing values, impossible ones, and a last file cut off."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        rows = [f"station-{row % 5},2026-{number:02}-{1 + row // 5:02},{row % 40 - 5}.5\n" for row in range(100)]
        messy = [rows[0], "station-9,2026-01-01,\n", ",2026-01-02,3.0\n", "station-9,2026-01-03,999\n"]
        (folder / f"month-{number:02}.csv").write_text(HEADER + "".join(rows + messy))
    (folder / f"month-{count:02}.csv").write_text(HEADER + "station-1,2026-12-01,1.5\nstation-2,2026-1")


def _mend(client: Client, flow_id: str, source: Path) -> None:
    """What a person does about the quarantine."""
    client.wait_for_attribute_match(flow_id, is_waiting, AttributeMatch.equal_to(True))
    for bad in client.invoke_rpc(flow.look, flow_id):
        print(f"in quarantine: {bad.file}: {bad.reason}")
        (source / bad.file).write_text(f"{HEADER}station-1,2026-12-01,1.5\nstation-2,2026-12-01,2.5\n")
    print("mended" if client.invoke_rpc(flow.retry, flow_id) else "nobody waits for that")


if __name__ == "__main__":
    main()
