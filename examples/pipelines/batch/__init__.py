"""Batch: a folder of messy CSV files becomes cleaned Parquet, file by file, with a quarantine for what can't be read.

    Scan ──► Clean, one Step execution a file ──► Settle ──► finished, or a person decides:
                     │  └ can't be read: quarantine           retry (the files were mended) or skip
                     └ disk trouble: tried again, then quarantine

- **Retries are per file.** A file on a disk that is away is tried again for a while and disturbs no other. A file whose
  content is wrong is not: it goes to the quarantine at once, since it would be as wrong the next time.
- **The quarantine is a Channel.** Each message is a file and what is wrong with it. It waits in the database until
  somebody looks (`look`), mends the files and says `retry`, or says `skip`. After a day they are skipped.
- **Progress is a Stream**: to watch, not to rely on.
- **Output is idempotent.** A Parquet file is written beside its place and renamed, so it is there whole or not at all,
  and carries a fingerprint of what it was made from. A second run over the same folder cleans what is new or changed.

If a process dies in the middle: files that are done are done, the one that was being cleaned is cleaned again, and
nobody ever sees half a Parquet file. What a killed process left behind is swept away at the end.

It holds some thousand files in one Flow; for more, see `examples.patterns.scalable_parallel`.

Run it with `python -m examples.pipelines.batch --demo`, or with `--source FOLDER --target FOLDER`.
"""

from __future__ import annotations

from examples.pipelines.batch.flow import flow, registry

__all__ = ["flow", "registry"]
