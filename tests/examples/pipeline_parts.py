"""What the tests of pipelines put in place of the real parts; importable by the workers of a cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dex import Registry
from examples.pipelines.batch.cleaning import Cleaned, Cleaner
from examples.pipelines.batch.flow import BatchFlow
from examples.pipelines.files import place_for
from examples.pipelines.train.digits import Candidate, Digits
from examples.pipelines.train.flow import TrainFlow

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier


class SlowDigits(Digits):
    """Each epoch takes a while, so that a test can do harm in the middle of one."""

    def epoch(self, candidate: Candidate, network: MLPClassifier, pictures: Any, labels: Any) -> None:
        time.sleep(0.1)
        super().epoch(candidate, network, pictures, labels)


slow_training = TrainFlow(SlowDigits())
slow_trainings = Registry([slow_training])


class SlowCleaner(Cleaner):
    """Half of each file is there for a moment first; it says which process is at it."""

    def clean(self, source: Path, target: Path) -> Cleaned:
        with place_for(target) as place:
            place.partial.write_text(str(os.getpid()))
            time.sleep(0.5)
        return super().clean(source, target)


slow_batch = BatchFlow(SlowCleaner())
slow_batches = Registry([slow_batch])


class Failing(Digits):
    """Candidates with this many hidden nodes fail, in every attempt; 0: all do."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    def epoch(self, candidate: Candidate, network: MLPClassifier, pictures: Any, labels: Any) -> None:
        if candidate.hidden == (self.hidden or candidate.hidden):
            raise ArithmeticError(f"{candidate} diverges")
        super().epoch(candidate, network, pictures, labels)


class Breaking(Digits):
    """Once, at the `nth` epoch that is trained, the process breaks down."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def epoch(self, candidate: Candidate, network: MLPClassifier, pictures: Any, labels: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise MemoryError("no memory left")
        super().epoch(candidate, network, pictures, labels)


def whole_files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path; one that was written by halves fails."""
    assert not list(folder.rglob(".partial-*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
