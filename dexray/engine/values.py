"""Large values on their way out of the journal, and what is said when one is not there."""

from __future__ import annotations

from collections.abc import Collection

from dexray.journal.interface import Journal


def read_blobs(journal: Journal, hashes: Collection[str]) -> tuple[dict[str, bytes], str]:
    """The values by content hash; and what is wrong with those that are left out, "" when none is."""
    blobs = journal.get_blobs(hashes)
    missing = set(hashes) - blobs.keys()
    return blobs, journal.about_blobs(missing) if missing else ""
