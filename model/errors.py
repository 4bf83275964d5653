"""The errors of this package; foreign exceptions become one of these at the seam.

ModelError
├── ModelConfigError    a setting outside its limits, or settings that do not fit together
├── CatalogueError      an items file or catalogue that cannot be used
├── SummaryError        a summary from another bundle, accumulators of the wrong size, parts that overlap
│   └── RescanNeeded    what shall be forgotten cannot be subtracted
├── TrainingError       an event log that cannot be trained on
├── TrainingRunError    a run directory that cannot be used
├── TrainingStopped     a signal stopped a run; its checkpoint is written
└── BundleError         a bundle that is missing, damaged, mismatched or of an unknown format
"""


class ModelError(Exception):
    """Anything this package raises on purpose."""


class ModelConfigError(ModelError):
    """A setting is outside its limits, or two settings do not fit together."""


class CatalogueError(ModelError):
    """An items file or a catalogue cannot be used."""


class SummaryError(ModelError):
    """A summary belongs to another bundle, has the wrong layout, or cannot be what it is said to be."""


class RescanNeeded(SummaryError):
    """An interaction to be forgotten is among the kept keys; the history must be compressed again without it."""


class TrainingError(ModelError):
    """The event log does not hold what training needs."""


class TrainingRunError(ModelError):
    """A run directory is damaged, or of other settings or another event log."""


class TrainingStopped(ModelError):
    """A signal stopped a run; the next one goes on from its checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        """Keep the signal's number beside the message."""
        super().__init__(message)
        self.signal_number = signal_number


class BundleError(ModelError):
    """A bundle is missing, damaged, mismatched or written in an unknown format."""
