"""The last sign of life of a flow run, and how far it is, from the artifact that its heartbeat keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType
from prefect.client.schemas.sorting import ArtifactSort

from plumbline.dispatch import Lane
from plumbline.dispatch.loop import Run
from tasks.telling import tell

__all__ = ["Progress", "read_progress", "tell_lanes"]

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """The last sign of life of a run."""

    share: float = 0.0
    words: str = ""
    changed: str = ""


def read_progress(client: SyncPrefectClient, runs: Collection[UUID]) -> dict[UUID, Progress]:
    """The progress of each run that tells it; one that Prefect started again has an artifact of each start."""
    wanted = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=list(runs)), type=ArtifactFilterType(any_=["progress"])
    )
    found: dict[UUID, Progress] = {}
    for one in client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.UPDATED_DESC, limit=_PAGE):
        if one.flow_run_id is not None and one.flow_run_id not in found:
            share = float(one.data) if isinstance(one.data, (int, float)) else 0.0
            found[one.flow_run_id] = Progress(share, one.description or "", str(one.updated))
    return found


def tell_lanes(lanes: Sequence[Lane], progress: Mapping[Run, Progress]) -> None:
    """Tell the parent of this process where each training is."""
    for lane in lanes:
        seen = progress.get((lane.job.key, lane.attempt), Progress())
        told = {"phase": lane.phase.value, "attempt": lane.attempt, "share": seen.share, "words": seen.words}
        tell("lane", platform=lane.job.platform, **told)
